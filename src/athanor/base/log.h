// Log lines for people and for the record of a run.
//
// A Log hangs off a rank's context and is handed to whoever writes to it; there is no global one. A line is
// "2026-01-31T12:00:00.123Z warning rank 3: text", to standard error, to a file, or both.
// Progress and results are no log lines: they go to the sinks of `observe`.
// Called by every room. Thread safety: all functions may be called from several threads; lines stay whole.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace athanor {

enum class LogLevel : uint8_t { debug, info, warning, error, off };

std::string_view name_of(LogLevel level);

struct LogOptions {
  LogLevel level = LogLevel::info;  // lines below it are dropped
  bool to_stderr = true;
  std::string file;  // appended to; empty: none
  std::string name;  // put in front of each text, such as "rank 3"; may be empty
};

class Log {
 public:
  // Throws Error (user) if the file cannot be opened. A line that cannot be written later is dropped: a full
  // disk does not end a run through its log.
  explicit Log(LogOptions options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool wants(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

  // Arguments are formatted only if the line is wanted.
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (wants(LogLevel::debug)) write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (wants(LogLevel::info)) write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    if (wants(LogLevel::warning)) write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    if (wants(LogLevel::error)) write(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
  }

  // Writes one line, whatever the level of the log. Line breaks in the text are kept, indented, so that a
  // text cannot pretend to be another line; other control characters are escaped.
  void write(LogLevel level, std::string_view text);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
  std::atomic<LogLevel> level_;
};

}  // namespace athanor
