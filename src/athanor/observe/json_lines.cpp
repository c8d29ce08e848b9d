#include "athanor/observe/json_lines.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "athanor/observe/format.h"
#include "athanor/observe/line_file.h"

namespace athanor {

namespace {

void append_string(std::string& out, std::string_view text) {
  out += '"';
  // Control characters and broken UTF-8 are gone after `printable`; these two are left to escape.
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"NaN\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else {
    out += fmt::format("{}", value);  // the shortest text that reads back as the same number
  }
}

// One object, member by member.
class Object {
 public:
  explicit Object(std::string_view key, int64_t value) : text_(fmt::format("{{\"{}\":{}", key, value)) {}
  Object& add(std::string_view key, int64_t value) {
    begin(key);
    text_ += fmt::format("{}", value);
    return *this;
  }
  Object& add(std::string_view key, double value) {
    begin(key);
    append_number(text_, value);
    return *this;
  }
  Object& add(std::string_view key, const std::optional<double>& value) {
    if (value) return add(key, *value);
    begin(key);
    text_ += "null";
    return *this;
  }
  Object& add_bool(std::string_view key, bool value) {
    begin(key);
    text_ += value ? "true" : "false";
    return *this;
  }
  Object& add_text(std::string_view key, std::string_view value) {
    begin(key);
    append_string(text_, value);
    return *this;
  }
  Object& add_null(std::string_view key) {
    begin(key);
    text_ += "null";
    return *this;
  }
  std::string text() { return text_ + "}"; }

 private:
  void begin(std::string_view key) { text_ += fmt::format(",\"{}\":", key); }
  std::string text_;
};

// The text after `"key":`, empty if the line has no such member. Quotes inside string values are escaped,
// so that the pattern matches keys only.
std::string_view member(std::string_view line, std::string_view key) {
  const std::string pattern = fmt::format("\"{}\":", key);
  const size_t at = line.find(pattern);
  return at == std::string_view::npos ? std::string_view{} : line.substr(at + pattern.size());
}

std::optional<int64_t> integer_member(std::string_view line, std::string_view key) {
  const std::string_view text = member(line, key);
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<double> number_member(std::string_view line, std::string_view key) {
  const std::string_view text = member(line, key);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (text.starts_with("\"NaN\"")) return std::numeric_limits<double>::quiet_NaN();
  if (text.starts_with("\"Infinity\"")) return infinity;
  if (text.starts_with("\"-Infinity\"")) return -infinity;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string text_member(std::string_view line, std::string_view key) {
  const std::string_view text = member(line, key);
  std::string value;
  if (text.empty() || text[0] != '"') return value;
  for (size_t i = 1; i < text.size() && text[i] != '"'; ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    value += text[i];
  }
  return value;
}

// The step of a line of ours. Anything with a control byte in it is damage (a crash of the machine may
// leave zeros where lines were).
std::optional<int64_t> step_of(std::string_view line) {
  if (!line.starts_with("{\"step\":") || !line.ends_with('}')) return std::nullopt;
  const auto control = [](char c) { return static_cast<uint8_t>(c) < 0x20; };
  if (std::any_of(line.begin(), line.end(), control)) return std::nullopt;
  return integer_member(line, "step");
}

void append_line(WritableFile& file, std::string line) {
  line += '\n';
  file.append(std::as_bytes(std::span(line)));
}

// `once`: a step has one line, the first.
std::unique_ptr<WritableFile> open_after(FileEnvironment& files, const std::string& path, int64_t last_step,
                                         bool once) {
  int64_t previous = -1;
  keep_lines(files, path, [&](std::string_view line) {
    const auto step = step_of(line);
    if (!step || *step > last_step || *step < previous || (once && *step == previous)) return false;
    previous = *step;
    return true;
  });
  return files.create(path, {.mode = CreateMode::append});
}

}  // namespace

std::string to_json(const StepReport& r) {
  Object object("step", r.step);
  object.add("loss", r.loss)
      .add("gradient_norm", r.gradient_norm)
      .add("learning_rate", r.learning_rate)
      .add("consumed_samples", r.consumed_samples)
      .add("consumed_tokens", r.consumed_tokens)
      .add("valid_tokens", r.valid_tokens)
      .add("step_seconds", r.step_seconds)
      .add("tokens_per_second", r.tokens_per_second)
      .add("mfu", r.mfu)
      .add("mfu_computed_blocks", r.mfu_computed_blocks)
      .add("seconds_left", r.seconds_left)
      .add("loss_scale", r.loss_scale)
      .add_bool("skipped", r.skipped)
      .add("skipped_steps", r.skipped_steps);
  r.event.empty() ? object.add_null("event") : object.add_text("event", r.event);
  return object.text();
}

std::string to_json(const ValidationReport& r) {
  return Object("step", r.step)
      .add_text("set", r.set)
      .add("loss", r.loss)
      .add("perplexity", r.perplexity)
      .add("tokens", r.tokens)
      .text();
}

JsonLines::JsonLines(FileEnvironment& files, const std::string& folder, int64_t last_step)
    : metrics_(open_after(files, join_path(folder, metrics_file_name), last_step, true)),
      validation_(open_after(files, join_path(folder, validation_file_name), last_step, false)) {
  files.sync_directory(folder);
}

void JsonLines::step(const StepReport& report) {
  append_line(*metrics_, to_json(report));
}

void JsonLines::validation(const ValidationReport& report) {
  append_line(*validation_, to_json(report));
}

void JsonLines::finish() {
  metrics_->sync();
  validation_->sync();
}

int64_t replay_json_lines(FileEnvironment& files, const std::string& folder, int64_t last_step,
                          ReportSink& sink) {
  int64_t passed_over = 0;
  // There are few validations, so they are held in memory and merged into the stream of steps.
  std::vector<ValidationReport> validations;
  for_each_line(files, join_path(folder, validation_file_name), [&](std::string_view line, bool complete) {
    const auto step = step_of(line);
    if (!complete || !step) ++passed_over;
    if (!complete || !step || *step > last_step) return;
    validations.push_back({.step = *step,
                           .set = text_member(line, "set"),
                           .loss = number_member(line, "loss"),
                           .perplexity = number_member(line, "perplexity"),
                           .tokens = integer_member(line, "tokens").value_or(0)});
  });
  size_t next = 0;
  const auto validate_before = [&](int64_t step) {
    for (; next < validations.size() && validations[next].step < step; ++next)
      sink.validation(validations[next]);
  };
  for_each_line(files, join_path(folder, metrics_file_name), [&](std::string_view line, bool complete) {
    const auto step = step_of(line);
    if (!complete || !step) ++passed_over;
    if (!complete || !step || *step > last_step) return;
    validate_before(*step);
    StepReport report;
    report.step = *step;
    report.loss = number_member(line, "loss");
    report.step_seconds = number_member(line, "step_seconds").value_or(0);
    report.consumed_tokens = integer_member(line, "consumed_tokens").value_or(0);
    sink.step(report);
  });
  validate_before(std::numeric_limits<int64_t>::max());
  return passed_over;
}

}  // namespace athanor
