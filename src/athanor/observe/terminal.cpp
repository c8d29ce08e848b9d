#include "athanor/observe/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "athanor/base/plural.h"
#include "athanor/observe/format.h"

namespace athanor {

namespace {

constexpr std::string_view erase_to_end = "\x1b[K", plain_style = "\x1b[0m", yellow = "\x1b[33m",
                           green = "\x1b[32m";
constexpr int least_bar = 5, most_bar = 30;
constexpr int narrow = 110;  // columns below which names are cut short

std::string loss_text(const std::optional<double>& loss) {
  return loss ? format_loss(*loss) : "-";
}

std::string step_text(int64_t step, int64_t total) {
  if (total <= 0) return fmt::format("step {}", step);
  // The width stays the same through the run.
  const std::string last = fmt::format("{}", total);
  return fmt::format("step {:>{}}/{}", step, last.size(), last);
}

// Filled by eighths of a character where there is Unicode.
std::string bar(double share, int width, bool unicode) {
  static constexpr std::array<std::string_view, 8> parts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = std::clamp(share, 0.0, 1.0) * width;
  const int whole = static_cast<int>(filled);
  std::string text;
  for (int i = 0; i < whole; ++i) text += unicode ? "█" : "=";
  int used = whole;
  if (whole < width) {
    const auto eighths = static_cast<size_t>((filled - whole) * 8);
    if (unicode && eighths > 0) {
      text += parts[eighths];
      ++used;
    } else if (!unicode && whole > 0) {
      text.back() = '>';
    }
  }
  for (; used < width; ++used) text += unicode ? "░" : ".";
  return text;
}

struct Part {
  int rank = 0;  // lower ones stay longer
  std::string text;
};

// Numbers of a step in the order they are shown; a rank says which give way first.
std::vector<Part> parts_of(const StepReport& r, bool brief) {
  std::vector<Part> parts;
  parts.push_back({1, "loss " + loss_text(r.loss)});
  if (r.gradient_norm) {
    parts.push_back({5, (brief ? "grad " : "gradient norm ") + format_short(*r.gradient_norm)});
  }
  parts.push_back({6, "rate " + format_short(r.learning_rate)});
  if (r.tokens_per_second > 0) parts.push_back({3, format_rate(r.tokens_per_second)});
  if (r.mfu) parts.push_back({4, "MFU " + format_share(*r.mfu)});
  if (r.seconds_left) parts.push_back({2, format_seconds(std::max(*r.seconds_left, 0.0)) + " left"});
  return parts;
}

std::string event_text(const StepReport& r, bool unicode) {
  std::string text = printable(r.event, !unicode);
  if (r.skipped) text += text.empty() ? "skipped" : ", skipped";
  return text;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  return value == nullptr ? "" : value;
}

bool locale_is_utf8() {
  std::string value = environment("LC_ALL");
  if (value.empty()) value = environment("LC_CTYPE");
  if (value.empty()) value = environment("LANG");
  for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
}

}  // namespace

std::string live_line(const StepReport& report, const TerminalOptions& options, int columns) {
  std::vector<Part> parts = parts_of(report, columns < narrow);
  const bool bounded = options.total_steps > 0;
  std::string head = step_text(report.step, options.total_steps);
  const auto total = [&] {
    int width = display_width(head);
    for (const auto& part : parts) width += 2 + display_width(part.text);
    return width;
  };
  // The bar takes what the numbers leave.
  const int bar_space = 1 + least_bar + 5;
  const auto remove_least = [&] {
    parts.erase(std::max_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.rank < b.rank; }));
  };
  while (!parts.empty() && total() > columns) remove_least();
  const int left = columns - total();
  std::string line = std::move(head);
  if (bounded && left >= bar_space) {
    const double share = static_cast<double>(report.step) / static_cast<double>(options.total_steps);
    const int width = std::min(most_bar, left - 6);
    line += fmt::format(" {} {:3.0f}%", bar(share, width, options.unicode),
                        std::floor(100 * std::clamp(share, 0.0, 1.0)));
  }
  for (const auto& part : parts) line += "  " + part.text;
  return std::string(fit_to_width(line, columns));
}

std::string plain_line(const StepReport& report, const TerminalOptions& options) {
  std::string line = step_text(report.step, options.total_steps);
  for (const auto& part : parts_of(report, false)) line += "  " + part.text;
  if (!report.is_ordinary()) line += "  [" + event_text(report, options.unicode) + "]";
  return line;
}

std::string validation_line(const ValidationReport& r, const TerminalOptions& options) {
  const std::string set = printable(r.set, !options.unicode);
  if (!r.loss) return fmt::format("step {}  {}: no valid tokens", r.step, set);
  std::string line = fmt::format("step {}  {}: loss {}", r.step, set, format_loss(*r.loss));
  if (r.perplexity) line += "  perplexity " + format_short(*r.perplexity);
  return line + fmt::format("  ({} token{})", format_count(r.tokens), plural(r.tokens));
}

TerminalOptions terminal_options_for(std::FILE* stream) {
  const std::string term = environment("TERM");
  const bool screen = isatty(fileno(stream)) == 1;
  TerminalOptions options;
  options.live = screen && !term.empty() && term != "dumb";
  options.unicode = locale_is_utf8();
  options.color = options.live && environment("NO_COLOR")[0] == '\0';
  return options;
}

int terminal_columns(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::unique_ptr<Terminal> make_terminal(std::FILE* stream, TerminalOptions options) {
  const auto write = [stream](std::string_view bytes) {
    // A closed or full screen is no reason to stop training: what cannot be shown is dropped.
    std::fwrite(bytes.data(), 1, bytes.size(), stream);
    std::fflush(stream);
  };
  return std::make_unique<Terminal>(
      options, write, [stream] { return terminal_columns(stream); }, monotonic_clock());
}

Terminal::Terminal(TerminalOptions options, std::function<void(std::string_view)> write,
                   std::function<int()> columns, Clock& clock)
    : options_(options), write_(std::move(write)), columns_(std::move(columns)), clock_(clock) {}

Terminal::~Terminal() {
  try {
    if (!live_line_.empty()) write_("\n");
  } catch (...) {  // a closed terminal while unwinding: there is nobody left to tell
  }
}

// One write each, so that nothing of another process comes in between.
void Terminal::show_live(const StepReport& report) {
  // The last column stays free: writing there makes some terminals wrap.
  live_line_ = live_line(report, options_, std::max(columns_() - 1, 1));
  write_(fmt::format("\r{}{}", live_line_, erase_to_end));
  drawn_at_ = clock_.now_ns();
  shown_ = report;
}

void Terminal::show_plain(const StepReport& report) {
  write_(plain_line(report, options_) + '\n');
  plain_at_ = clock_.now_ns();
  shown_ = report;
}

void Terminal::print_above(std::string_view text) {
  std::string out;
  if (!live_line_.empty()) out += fmt::format("\r{}", erase_to_end);
  out += text;
  if (!text.ends_with('\n')) out += '\n';
  out += live_line_;
  write_(out);
}

void Terminal::step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  last_ = report;
  const int64_t now = clock_.now_ns();
  const auto due = [&](const std::optional<int64_t>& at, double interval) {
    return !at || seconds_of(now - *at) >= interval;
  };

  if (!report.is_ordinary()) {
    if (due(event_at_, options_.event_interval_seconds)) {
      std::string text = plain_line(report, options_);
      if (unseen_events_ > 0) text += fmt::format(" and {} more before", unseen_events_);
      if (options_.color) text = fmt::format("{}{}{}", yellow, text, plain_style);
      print_above(text);
      event_at_ = now;
      unseen_events_ = 0;
      if (!options_.live) plain_at_ = now, shown_ = report;
    } else {
      ++unseen_events_;
    }
  }
  if (options_.live) {
    if (due(drawn_at_, options_.live_interval_seconds)) show_live(report);
  } else if (due(plain_at_, options_.plain_interval_seconds)) {
    show_plain(report);
  }
}

void Terminal::validation(const ValidationReport& report) {
  const std::lock_guard lock(mutex_);
  if (!options_.live && is_last_unseen()) show_plain(*last_);  // the step that is judged
  const std::string line = validation_line(report, options_);
  print_above(options_.color ? fmt::format("{}{}{}", green, line, plain_style) : line);
}

void Terminal::message(MessageKind kind, const std::string& text) {
  const std::lock_guard lock(mutex_);
  const std::string shown = printable(text, !options_.unicode);
  const char* const before = kind == MessageKind::note      ? ""
                             : kind == MessageKind::warning ? "warning: "
                                                            : "error: ";
  std::string line = before + shown;
  if (options_.color && kind != MessageKind::note) line = fmt::format("{}{}{}", yellow, line, plain_style);
  print_above(line);
}

void Terminal::print(std::string_view text) {
  const std::lock_guard lock(mutex_);
  print_above(text);
}

void Terminal::finish() {
  const std::lock_guard lock(mutex_);
  if (options_.live) {
    if (is_last_unseen()) show_live(*last_);
    if (!live_line_.empty()) write_("\n");
    live_line_.clear();
  } else if (is_last_unseen()) {
    show_plain(*last_);
  }
}

}  // namespace athanor
