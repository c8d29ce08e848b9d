// Log lines for people: what happened when.
//
// A line is "2026-01-31T12:00:00.123Z warning text". Progress and results are no log lines: they go to the
// sinks of `observe`, one of which writes what matters later into a log.
// Called by observe/run_log.h. Thread safety: lines may come from several threads; they stay whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "athanor/base/file_environment.h"

namespace athanor {

enum class LogLevel : uint8_t { info, warning, error };

class Log {
 public:
  // Goes on at the end of the file. Throws Error (user) if it cannot be opened; a line that cannot be written
  // later is dropped: a full disk does not end a run through its log. `files` must outlive it.
  Log(FileEnvironment& files, const std::string& path);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // One line, in the file when this returns. Line breaks in the text are kept, indented, so that a text
  // cannot pretend to be another line; other control characters are escaped.
  void write(LogLevel level, std::string_view text);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace athanor
