#include "support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// In the child: only calls that are safe after a fork.
[[noreturn]] void become(char* const* arguments, const char* folder, const char* output, const char* errors) {
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (in < 0 || out < 0 || err < 0 || chdir(folder) != 0) _exit(126);
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

ProgramResult run_and_wait(const std::vector<std::string>& arguments, const std::string& folder,
                           const std::string& output_to, double seconds) {
  const TemporaryFolder scratch;
  const std::string output = output_to.empty() ? scratch.path("output") : output_to;
  const std::string errors = scratch.path("errors");
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers;
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  const pid_t child = fork();
  ATHANOR_ASSERT(child >= 0, "cannot start a process");
  if (child == 0) become(pointers.data(), folder.c_str(), output.c_str(), errors.c_str());
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ProgramResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (output_to.empty()) result.output = contents(output);
  result.errors = contents(errors);
  return result;
}

}  // namespace athanor
