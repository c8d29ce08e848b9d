// What scripts, drivers and the launcher of ranks can tell from the end of a process.
//
// Called by cli and launcher.cpp. Thread safety: pure functions.
#pragma once

#include <optional>

#include "athanor/base/error.h"

namespace athanor {

enum class ExitCode : int {
  success = 0,
  failure = 1,         // an error that has none of the kinds below
  user_error = 2,      // a bad option, file or data: standard error says what, and what to do
  stop_job = 3,        // the run must not be tried again as it is
  restart_worker = 4,  // a new process may go on with the run
  retry_step = 5,      // the step may be tried again
};

ExitCode exit_code_of(ErrorKind kind);
// Nothing for success, failure and other programs' codes.
std::optional<ErrorKind> error_kind_of(int exit_code);

}  // namespace athanor
