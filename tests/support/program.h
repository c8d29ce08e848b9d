// Runs a program as a person would and keeps what it says.
//
// Called by end-to-end tests. Thread safety: functions may be called from several threads.
#pragma once

#include <string>
#include <vector>

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

}  // namespace athanor
