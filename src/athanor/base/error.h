// The one exception type of the project.
//
// Every failure that is not a bug is thrown as `Error` with a kind, which says who acts on it, and a
// hint, which says what to do. Called by every room. Thread safety: values, no shared state.
// Nothing but `cli` prints an error or exits; nothing swallows one.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace athanor {

enum class ErrorKind : uint8_t {
  user,            // a bad option, file or data: message, hint, exit code 2
  retry_step,      // the step may be tried again in the same process
  restart_worker,  // the process must be replaced; the job can go on
  stop_job,        // nobody should retry: the job ends
};

std::string_view name_of(ErrorKind kind);

class Error : public std::exception {
 public:
  // `message` says what happened and where; `hint` what to do about it (may be empty).
  Error(ErrorKind kind, std::string message, std::string hint = {});

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  // "message" or "message\n  hint: hint".
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_, hint_, text_;
};

// The commonest kind, named: something the user can put right.
[[noreturn]] void throw_user_error(std::string message, std::string hint = {});

// Ends the process with file, line and message: for broken invariants (bugs), in every build.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const std::string& detail);

}  // namespace athanor

// ATHANOR_ASSERT(condition) or ATHANOR_ASSERT(condition, "format {}", value).
#define ATHANOR_ASSERT(condition, ...)                                                            \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::athanor::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
