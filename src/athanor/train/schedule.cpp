#include "athanor/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "athanor/base/error.h"

namespace athanor {

double learning_rate(const ScheduleOptions& options, int64_t consumed, int64_t batch, int64_t total) {
  // The rate belongs to the step that ends after these samples, so that the first step's is not zero.
  const auto position = static_cast<double>(consumed + batch);
  const auto warmup = static_cast<double>(options.warmup_samples);
  if (position < warmup) return options.rate * position / warmup;
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  const double progress = std::clamp((static_cast<double>(consumed) - warmup) / span, 0.0, 1.0);
  const double range = options.rate - options.minimum_rate;
  switch (options.kind) {
    case ScheduleKind::constant: return options.rate;
    case ScheduleKind::linear: return options.minimum_rate + range * (1 - progress);
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

namespace {

int64_t full_batch(const BatchSizeOptions& options, int64_t micro_batch) {
  return options.batch > 0 ? options.batch : micro_batch;
}

}  // namespace

int64_t batch_size(const BatchSizeOptions& options, int64_t micro_batch, int64_t consumed) {
  const int64_t full = full_batch(options, micro_batch);
  if (options.ramp_from <= 0 || options.ramp_from >= full || consumed >= options.ramp_samples) return full;
  const int64_t step = options.ramp_step > 0 ? options.ramp_step : micro_batch;
  const int64_t stages = (full - options.ramp_from + step - 1) / step;
  const auto stage = static_cast<int64_t>(static_cast<double>(consumed) / static_cast<double>(options.ramp_samples) *
                                          static_cast<double>(stages));
  return std::min(full, options.ramp_from + stage * step);
}

void validate_batch(const BatchSizeOptions& options, int64_t micro_batch) {
  const auto demand_multiple = [&](const char* name, int64_t value) {
    if (value % micro_batch == 0) return;
    throw_user_error(fmt::format("train.{} {} is not a multiple of train.micro_batch {} ({} x {} + {})", name, value,
                                 micro_batch, value / micro_batch, micro_batch, value % micro_batch),
                     fmt::format("{} or {} would do", std::max<int64_t>(1, value / micro_batch) * micro_batch,
                                 (value / micro_batch + 1) * micro_batch));
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
  const int64_t full = full_batch(options, micro_batch);
  std::set<int32_t> counts{static_cast<int32_t>(full / micro_batch)};
  if (options.ramp_from > 0) {
    const int64_t step = options.ramp_step > 0 ? options.ramp_step : micro_batch;
    for (int64_t size = options.ramp_from; size < full; size += step) {
      counts.insert(static_cast<int32_t>(size / micro_batch));
    }
  }
  return {counts.begin(), counts.end()};
}

int64_t samples_after(const BatchSizeOptions& options, int64_t micro_batch, int64_t steps) {
  int64_t consumed = 0, step = 0;
  for (; step < steps && options.ramp_from > 0 && consumed < options.ramp_samples; ++step) {
    consumed += batch_size(options, micro_batch, consumed);
  }
  return consumed + (steps - step) * full_batch(options, micro_batch);
}

}  // namespace athanor
