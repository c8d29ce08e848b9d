#include "athanor/cluster/exit_code.h"

#include <initializer_list>

namespace athanor {

ExitCode exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::user:
      return ExitCode::user_error;
    case ErrorKind::stop_job:
      return ExitCode::stop_job;
    case ErrorKind::restart_worker:
      return ExitCode::restart_worker;
    case ErrorKind::retry_step:
      return ExitCode::retry_step;
  }
  return ExitCode::failure;
}

std::optional<ErrorKind> error_kind_of(int exit_code) {
  for (const ErrorKind kind :
       {ErrorKind::user, ErrorKind::stop_job, ErrorKind::restart_worker, ErrorKind::retry_step})
    if (static_cast<int>(exit_code_of(kind)) == exit_code) return kind;
  return std::nullopt;
}

}  // namespace athanor
