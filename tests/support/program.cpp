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

BackgroundProgram::BackgroundProgram(const std::vector<std::string>& arguments, const std::string& folder,
                                     const std::string& output_to)
    : output_to_(output_to) {
  const std::string output = output_to.empty() ? scratch_.path("output") : output_to;
  const std::string errors = scratch_.path("errors");
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers;
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  child_ = fork();
  ATHANOR_ASSERT(child_ >= 0, "cannot start a process");
  if (child_ == 0) become(pointers.data(), folder.c_str(), output.c_str(), errors.c_str());
}

BackgroundProgram::~BackgroundProgram() {
  if (!ended_) wait(0);
}

void BackgroundProgram::send(int signal) const {
  if (!ended_) kill(child_, signal);
}

bool BackgroundProgram::ended() {
  int status = 0;
  if (!ended_ && waitpid(child_, &status, WNOHANG) != 0) {
    ended_ = true;
    if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  }
  return ended_;
}

bool BackgroundProgram::wait_until(const std::function<bool()>& condition, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (ended() || std::chrono::steady_clock::now() > deadline) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

ProgramResult BackgroundProgram::wait(double seconds) {
  if (!wait_until([this] { return ended(); }, seconds)) {
    send(SIGKILL);
    wait_until([this] { return ended(); });
  }
  if (output_to_.empty()) result_.output = contents(scratch_.path("output"));
  result_.errors = contents(scratch_.path("errors"));
  return result_;
}

ProgramResult run_and_wait(const std::vector<std::string>& arguments, const std::string& folder,
                           const std::string& output_to, double seconds) {
  return BackgroundProgram(arguments, folder, output_to).wait(seconds);
}

}  // namespace athanor
