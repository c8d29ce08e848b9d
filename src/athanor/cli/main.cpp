#include <fcntl.h>

#include <csignal>

#include "athanor/cli/commands.h"

int main(int argc, char** argv) {
  // Where a standard stream is closed, the next file that is opened would take its number, and what is
  // printed would go into that file.
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDWR) != descriptor) return 1;
  }
  // A file beyond the limit of `ulimit -f` is an error like a full disk, no death.
  std::signal(SIGXFSZ, SIG_IGN);
  return athanor::run_program(argc, argv);
}
