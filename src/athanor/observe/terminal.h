// The run on a terminal or in a log file: progress, validations, messages.
//
// On a terminal one line is drawn anew in place, fitted to the width, and everything else is printed above
// it. In a file or pipe, lines come at a bounded rate. Created by `train`; `cli` routes the log's lines
// through `print` so that they do not tear the live line.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "athanor/base/clock.h"
#include "athanor/observe/report.h"

namespace athanor {

struct TerminalOptions {
  bool live = false;                   // redraw one line; false: plain lines
  bool unicode = false;                // else ASCII only
  bool color = false;                  // ANSI colours
  int64_t total_steps = 0;             // of the run; 0: not known
  double live_interval_seconds = 0.1;  // between drawings of the live line
  double plain_interval_seconds = 10;  // between plain lines about ordinary steps
  double event_interval_seconds = 1;   // between lines about steps with an event
};

class Terminal final : public ReportSink {
 public:
  // `write` takes bytes for the screen or file and shows them at once; `columns` is asked for the width at
  // every drawing.
  Terminal(TerminalOptions options, std::function<void(std::string_view)> write, std::function<int()> columns,
           Clock& clock);
  ~Terminal() override;  // leaves the cursor on a line of its own

  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void message(MessageKind kind, const std::string& text) override;
  // Whole lines of text, such as a chart, above the live line. Control characters but '\n' are the caller's.
  void print(std::string_view text);
  // Shows the last step, if it has not been, and ends the live line.
  void finish() override;

 private:
  bool is_last_unseen() const { return last_ && (!shown_ || shown_->step != last_->step); }
  void show_live(const StepReport& report);
  void show_plain(const StepReport& report);
  void print_above(std::string_view text);

  const TerminalOptions options_;
  const std::function<void(std::string_view)> write_;
  const std::function<int()> columns_;
  Clock& clock_;

  std::mutex mutex_;
  std::string live_line_;  // on the screen now
  std::optional<StepReport> last_, shown_;
  std::optional<int64_t> drawn_at_, plain_at_, event_at_;  // nanoseconds
  int64_t unseen_events_ = 0;
};

// The live line without its '\r': at most `columns` wide, the least important parts left out.
std::string live_line(const StepReport& report, const TerminalOptions& options, int columns);
// One line for a file, without '\n'.
std::string plain_line(const StepReport& report, const TerminalOptions& options);
std::string validation_line(const ValidationReport& report, const TerminalOptions& options);

// What a stream and the environment (TERM, NO_COLOR, LC_ALL, LC_CTYPE, LANG) allow.
TerminalOptions terminal_options_for(std::FILE* stream);
// Shows on the stream, which outlives the result.
std::unique_ptr<Terminal> make_terminal(std::FILE* stream, TerminalOptions options);
// Columns of the terminal behind the stream; 80 if there is none.
int terminal_columns(std::FILE* stream);

}  // namespace athanor
