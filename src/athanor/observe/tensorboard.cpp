#include "athanor/observe/tensorboard.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/base/little_endian.h"
#include "athanor/observe/format.h"

namespace athanor {

namespace {

// ---- protobuf: a field is a key (number and kind of encoding) and its value ----

enum class Wire : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7f) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void append_key(std::string& out, uint32_t field, Wire wire) {
  append_varint(out, field << 3 | static_cast<uint32_t>(wire));
}

void append_bytes(std::string& out, uint32_t field, std::string_view value) {
  append_key(out, field, Wire::bytes);
  append_varint(out, value.size());
  out += value;
}

// Fields of the messages, from TensorBoard's event.proto and summary.proto.
constexpr uint32_t event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
                   event_session_log = 7;
constexpr uint32_t session_status = 1, session_start = 1;
constexpr uint32_t summary_value = 1, value_tag = 1, value_simple_value = 2;

std::string begin_event(double wall_seconds, int64_t step) {
  std::string event;
  append_key(event, event_wall_time, Wire::fixed64);
  append_little_endian(event, std::bit_cast<uint64_t>(wall_seconds));
  if (step != 0) {  // zero is what a missing number means
    append_key(event, event_step, Wire::varint);
    append_varint(event, static_cast<uint64_t>(step));
  }
  return event;
}

// Nearest float; beyond its range infinity.
float to_float(double value) {
  if (std::abs(value) > std::numeric_limits<float>::max()) {
    return std::copysign(std::numeric_limits<float>::infinity(), value > 0 ? 1.0F : -1.0F);
  }
  return static_cast<float>(value);
}

using Scalars = std::vector<std::pair<std::string, double>>;

void add_known(Scalars& scalars, const char* tag, const std::optional<double>& value) {
  if (value) scalars.emplace_back(tag, *value);
}

}  // namespace

std::string tensorboard_record(std::string_view data) {
  // The mask keeps the checksum of data that holds checksums from being trivial.
  const auto masked = [](std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; };
  std::string record;
  append_little_endian(record, uint64_t{data.size()});
  append_little_endian(record, masked(record));
  record += data;
  append_little_endian(record, masked(data));
  return record;
}

std::string tensorboard_event(double wall_seconds, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, value_tag, tag);
    append_key(value, value_simple_value, Wire::fixed32);
    append_little_endian(value, std::bit_cast<uint32_t>(to_float(number)));
    append_bytes(summary, summary_value, value);
  }
  std::string event = begin_event(wall_seconds, step);
  append_bytes(event, event_summary, summary);
  return event;
}

TensorBoard::TensorBoard(FileEnvironment& files, const std::string& folder, int64_t last_step,
                         std::function<double()> wall_seconds)
    : wall_seconds_(std::move(wall_seconds)) {
  // TensorBoard reads the files of a folder in the order of their names.
  const double now = wall_seconds_();
  ATHANOR_ASSERT(std::isfinite(now) && now >= 0 && now < 1e10, "time {}", now);
  for (int number = 0;; ++number) {
    path_ = join_path(
        folder, fmt::format("events.out.tfevents.{:010}.athanor.{:03}", static_cast<int64_t>(now), number));
    if (!files.exists(path_)) break;
  }
  file_ = files.create(path_, {.mode = CreateMode::exclusive});
  files.sync_directory(folder);

  std::string version = begin_event(now, 0);
  append_bytes(version, event_file_version, "brain.Event:2");
  append(version);
  // What earlier files of the folder hold from this step on is void.
  std::string session;
  append_key(session, session_status, Wire::varint);
  append_varint(session, session_start);
  std::string start = begin_event(now, last_step + 1);
  append_bytes(start, event_session_log, session);
  append(start);
}

void TensorBoard::append(std::string_view event) {
  const std::string record = tensorboard_record(event);
  file_->append(std::as_bytes(std::span(record)));
}

void TensorBoard::step(const StepReport& r) {
  Scalars scalars;
  add_known(scalars, "train/loss", r.loss);
  add_known(scalars, "train/gradient_norm", r.gradient_norm);
  add_known(scalars, "train/learning_rate", r.learning_rate);
  add_known(scalars, "train/loss_scale", r.loss_scale);
  add_known(scalars, "train/skipped", r.skipped ? 1.0 : 0.0);
  add_known(scalars, "train/skipped_steps", static_cast<double>(r.skipped_steps));
  add_known(scalars, "train/consumed_samples", static_cast<double>(r.consumed_samples));
  add_known(scalars, "train/consumed_tokens", static_cast<double>(r.consumed_tokens));
  add_known(scalars, "train/valid_tokens", static_cast<double>(r.valid_tokens));
  add_known(scalars, "speed/step_seconds", r.step_seconds);
  add_known(scalars, "speed/tokens_per_second", r.tokens_per_second);
  add_known(scalars, "speed/mfu", r.mfu);
  add_known(scalars, "speed/mfu_computed_blocks", r.mfu_computed_blocks);
  append(tensorboard_event(wall_seconds_(), r.step, scalars));
}

void TensorBoard::validation(const ValidationReport& r) {
  const std::string prefix = fmt::format("validation/{}/", printable(r.set));
  Scalars scalars;
  if (r.loss) scalars.emplace_back(prefix + "loss", *r.loss);
  if (r.perplexity) scalars.emplace_back(prefix + "perplexity", *r.perplexity);
  if (!scalars.empty()) append(tensorboard_event(wall_seconds_(), r.step, scalars));
}

void TensorBoard::finish() {
  file_->sync();
}

}  // namespace athanor
