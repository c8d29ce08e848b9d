#include "athanor/observe/progress_bar.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "athanor/observe/format.h"

namespace athanor {

std::string progress_line(const ProgressBar::State& state, double seconds_left, bool unicode, int columns) {
  std::string line = state.stage;
  if (state.total <= 0) {
    if (!state.detail.empty()) line += "  " + state.detail;
    return std::string(fit_to_width(line, columns));
  }
  const double share =
      std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
  std::string after = fmt::format(" {:3.0f}%", 100 * share);
  // The least important parts come last and go first.
  const std::string left = seconds_left < 0 ? "" : fmt::format("  {} left", format_seconds(seconds_left));
  const std::string detail = state.detail.empty() ? "" : "  " + state.detail;
  constexpr int narrowest_bar = 10, widest_bar = 40;
  const int fixed = display_width(line) + display_width(after) + 3;
  for (const std::string& part : {left, detail}) {
    if (fixed + display_width(after) + display_width(part) + narrowest_bar <= columns) after += part;
  }
  const int room = columns - display_width(line) - display_width(after) - 3;
  if (room >= narrowest_bar) {
    const int width = std::min(room, widest_bar);
    const int full = static_cast<int>(share * width);
    line += " [";
    for (int i = 0; i < width; ++i) {
      line += i < full ? (unicode ? "\xe2\x96\x88" : "#") : (unicode ? "\xc2\xb7" : ".");
    }
    line += "]";
  }
  return std::string(fit_to_width(line + after, columns));
}

ProgressBar::ProgressBar(TerminalOptions options, std::function<void(std::string_view)> write,
                         std::function<int()> columns, Clock& clock)
    : options_(options), write_(std::move(write)), columns_(std::move(columns)), clock_(clock) {}

ProgressBar::~ProgressBar() {
  finish();
}

bool ProgressBar::is_due() const {
  const double interval = options_.live ? options_.live_interval_seconds : options_.plain_interval_seconds;
  return !drawn_at_ || seconds_of(clock_.now_ns() - *drawn_at_) >= interval;
}

void ProgressBar::update(const State& state) {
  const int64_t now = clock_.now_ns();
  if (state.stage != stage_) {
    stage_ = state.stage;
    stage_began_ns_ = now;
    stage_began_done_ = state.done;
  }
  // Plain lines begin after the first interval: a command of seconds leaves none in its log.
  if (!drawn_at_ && !options_.live) drawn_at_ = now;
  if (!is_due()) return;
  drawn_at_ = now;
  const auto pace = static_cast<double>(state.done - stage_began_done_);
  const double seconds = seconds_of(now - stage_began_ns_);
  const double seconds_left =
      pace > 0 && state.total > 0 ? seconds * static_cast<double>(state.total - state.done) / pace : -1;
  if (options_.live) {
    // One column less than there are: a full line would wrap.
    const std::string line = progress_line(state, seconds_left, options_.unicode, columns_() - 1);
    write_(fmt::format("\r{}\x1b[K", line));
    visible_ = true;
  } else {
    constexpr int plain_columns = 100;
    write_(progress_line(state, seconds_left, options_.unicode, plain_columns) + "\n");
  }
}

void ProgressBar::finish() {
  if (visible_) write_("\r\x1b[K");
  visible_ = false;
}

std::unique_ptr<ProgressBar> make_progress_bar(std::FILE* stream) {
  return std::make_unique<ProgressBar>(
      terminal_options_for(stream),
      [stream](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stream);
        std::fflush(stream);
      },
      [stream] { return terminal_columns(stream); }, monotonic_clock());
}

}  // namespace athanor
