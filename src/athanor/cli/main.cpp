#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string_view>

#include "athanor/cli/commands.h"
#include "athanor/cluster/exit_code.h"

namespace {

// Reading a mapped file that has become shorter, or lies on a disk that fails, raises SIGBUS.
extern "C" void on_bus_error(int number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // not that: a bug, end as without a handler
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  constexpr std::string_view text =
      "athanor: a data file was cut short while it was read, or its disk fails\n"
      "  hint: put the file back as it was; a run goes on with --resume from its latest checkpoint\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  _exit(static_cast<int>(athanor::ExitCode::user_error));
}

void prepare_process() {
  // A file beyond the limit of `ulimit -f` is an error like a full disk, no death.
  signal(SIGXFSZ, SIG_IGN);
  struct sigaction action{};
  sigaction(SIGBUS, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;  // a sanitizer's
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

// Where a standard stream is closed, the next file that is opened would take its number, and what is printed
// would go into that file. Results that cannot be printed are an error: /dev/full makes them one.
bool open_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    int opened = descriptor == STDOUT_FILENO ? open("/dev/full", O_WRONLY) : -1;
    if (opened < 0) opened = open("/dev/null", O_RDWR);
    if (opened != descriptor) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!open_standard_streams()) return 1;
  prepare_process();
  return athanor::run_program(argc, argv);
}
