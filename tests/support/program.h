// Runs a program as a person would and keeps what it says.
//
// Called by end-to-end tests. Thread safety: functions may be called from several threads.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "athanor/base/temporary_folder.h"

namespace athanor {

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string output, errors;
};

// Runs `arguments[0]` with the others in the folder `folder` and waits for its end. `output_to`, if not
// empty, is a file or device that takes its standard output. A program that has not ended after `seconds` is
// killed.
ProgramResult run_and_wait(const std::vector<std::string>& arguments, const std::string& folder,
                           const std::string& output_to = {}, double seconds = 120);

// A program that runs beside the test.
class BackgroundProgram {
 public:
  BackgroundProgram(const std::vector<std::string>& arguments, const std::string& folder,
                    const std::string& output_to = {});
  ~BackgroundProgram();  // kills it if it is still there
  BackgroundProgram(const BackgroundProgram&) = delete;
  BackgroundProgram& operator=(const BackgroundProgram&) = delete;

  pid_t process() const { return child_; }
  void send(int signal) const;
  // Waits until `condition` holds; false if the program ended or `seconds` passed before.
  bool wait_until(const std::function<bool()>& condition, double seconds = 60);
  bool ended();
  // Waits for its end; kills it after `seconds`.
  ProgramResult wait(double seconds = 120);

 private:
  TemporaryFolder scratch_;
  std::string output_to_;
  pid_t child_ = -1;
  bool ended_ = false;
  ProgramResult result_;
};

}  // namespace athanor
