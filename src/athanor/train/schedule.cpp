#include "athanor/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "athanor/base/error.h"

namespace athanor {

namespace {

double rate_of(const ScheduleOptions& options, int64_t consumed, int64_t batch, int64_t total) {
  // The rate belongs to the step that ends after these samples, so that the first step's is not zero.
  const auto position = static_cast<double>(consumed + batch);
  const auto warmup = static_cast<double>(options.warmup_samples);
  if (position < warmup) return options.rate * position / warmup;
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  const double progress = std::clamp((static_cast<double>(consumed) - warmup) / span, 0.0, 1.0);
  const double range = options.rate - options.minimum_rate;
  switch (options.kind) {
    case ScheduleKind::constant:
      return options.rate;
    case ScheduleKind::linear:
      return options.minimum_rate + range * (1 - progress);
    case ScheduleKind::cosine:
      return options.minimum_rate + range * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case ScheduleKind::warmup_stable_decay: {
      const auto decay = static_cast<double>(options.decay_samples);
      if (decay <= 0) return options.rate;
      const double into = static_cast<double>(consumed) - (static_cast<double>(total) - decay);
      return options.minimum_rate + range * (1 - std::clamp(into / decay, 0.0, 1.0));
    }
  }
  return options.rate;
}

int64_t full_batch(const BatchSizeOptions& options, int64_t micro_batch) {
  return options.batch > 0 ? options.batch : micro_batch;
}

int64_t ramp_step(const BatchSizeOptions& options, int64_t micro_batch) {
  return options.ramp_step > 0 ? options.ramp_step : micro_batch;
}

// The ramp has this many equal parts, each with a batch of its own; 0: no ramp.
int64_t ramp_stages(const BatchSizeOptions& options, int64_t micro_batch) {
  const int64_t full = full_batch(options, micro_batch), step = ramp_step(options, micro_batch);
  if (options.ramp_from <= 0 || options.ramp_from >= full || options.ramp_samples <= 0) return 0;
  return (full - options.ramp_from + step - 1) / step;
}

// The first consumed count in part `stage` of the ramp: ramp_samples x stage / stages, rounded up. In whole
// numbers, by parts so that nothing overflows: the batch grows at the same sample on every machine.
int64_t stage_begin(const BatchSizeOptions& options, int64_t stages, int64_t stage) {
  const int64_t whole = options.ramp_samples / stages, rest = options.ramp_samples % stages;
  return whole * stage + (rest * stage + stages - 1) / stages;
}

int64_t stage_batch(const BatchSizeOptions& options, int64_t micro_batch, int64_t stage) {
  return std::min(full_batch(options, micro_batch),
                  options.ramp_from + stage * ramp_step(options, micro_batch));
}

}  // namespace

double learning_rate(const ScheduleOptions& options, int64_t consumed, int64_t batch, int64_t total) {
  const double rate = rate_of(options, consumed, batch, total);
  ATHANOR_ASSERT(rate >= 0 && rate <= options.rate * (1 + 1e-12), "{}", rate);
  return std::min(rate, options.rate);
}

int64_t batch_size(const BatchSizeOptions& options, int64_t micro_batch, int64_t consumed) {
  const int64_t stages = ramp_stages(options, micro_batch);
  if (stages == 0 || consumed >= options.ramp_samples) return full_batch(options, micro_batch);
  int64_t low = 0, high = stages;  // the stage is in [low, high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (stage_begin(options, stages, middle) <= consumed ? low : high) = middle;
  }
  return stage_batch(options, micro_batch, low);
}

void validate_batch(const BatchSizeOptions& options, int64_t rank_micro_batch, const Mesh& mesh) {
  const int64_t micro_batch = rank_micro_batch * mesh.data_ranks();
  std::string unit = fmt::format("train.micro_batch {}", rank_micro_batch);
  if (micro_batch != rank_micro_batch) {
    unit = fmt::format("{} samples: mesh.replica {} x mesh.shard {} x {}", micro_batch,
                       mesh.size(Axis::replica), mesh.size(Axis::shard), unit);
  }
  const auto demand_multiple = [&](const char* name, int64_t value) {
    if (value % micro_batch == 0) return;
    const int64_t below = value / micro_batch * micro_batch, above = below + micro_batch;
    throw_user_error(
        fmt::format("train.{} {} is not a multiple of {} ({} x {} + {})", name, value, unit,
                    value / micro_batch, micro_batch, value % micro_batch),
        below > 0 ? fmt::format("{} or {} would do", below, above) : fmt::format("{} would do", above));
  };
  demand_multiple("batch", options.batch);
  demand_multiple("batch_ramp_from", options.ramp_from);
  demand_multiple("batch_ramp_step", options.ramp_step);
  if (options.ramp_from > 0 && options.ramp_samples <= 0) {
    throw_user_error("train.batch_ramp_from is set and train.batch_ramp_samples is not",
                     "say after how many samples the full batch is reached");
  }
  if (options.ramp_from > full_batch(options, micro_batch)) {
    throw_user_error(fmt::format("train.batch_ramp_from {} is above train.batch {}", options.ramp_from,
                                 full_batch(options, micro_batch)),
                     "the batch grows from the one to the other");
  }
}

std::vector<int32_t> micro_batch_counts(const BatchSizeOptions& options, int64_t micro_batch) {
  std::set<int32_t> counts{static_cast<int32_t>(full_batch(options, micro_batch) / micro_batch)};
  for (int64_t stage = 0; stage < ramp_stages(options, micro_batch); ++stage) {
    counts.insert(static_cast<int32_t>(stage_batch(options, micro_batch, stage) / micro_batch));
  }
  return {counts.begin(), counts.end()};
}

int64_t samples_after(const BatchSizeOptions& options, int64_t micro_batch, int64_t steps) {
  const int64_t stages = ramp_stages(options, micro_batch);
  int64_t consumed = 0, left = steps;
  for (int64_t stage = 0; stage < stages && left > 0; ++stage) {
    const int64_t end = stage_begin(options, stages, stage + 1),
                  batch = stage_batch(options, micro_batch, stage);
    if (consumed >= end) continue;
    const int64_t taken = std::min(left, (end - consumed + batch - 1) / batch);
    consumed += taken * batch;
    left -= taken;
  }
  const int64_t full = full_batch(options, micro_batch);
  if (left > (std::numeric_limits<int64_t>::max() - consumed) / full) {
    throw_user_error(fmt::format("train.steps {} of {} samples are more than can be counted", steps, full),
                     "lower train.steps or train.batch");
  }
  return consumed + left * full;
}

}  // namespace athanor
