#include "athanor/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace athanor {

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::user:
      return "user error";
    case ErrorKind::retry_step:
      return "retry step";
    case ErrorKind::restart_worker:
      return "restart worker";
    case ErrorKind::stop_job:
      return "stop job";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, std::string message, std::string hint)
    : kind_(kind), message_(std::move(message)), hint_(std::move(hint)) {
  text_ = hint_.empty() ? message_ : message_ + "\n  hint: " + hint_;
}

void throw_user_error(std::string message, std::string hint) {
  throw Error(ErrorKind::user, std::move(message), std::move(hint));
}

void assertion_failed(const char* expression, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s %s\n", file, line, expression, detail.c_str());
  std::abort();
}

}  // namespace athanor
