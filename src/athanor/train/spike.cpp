#include "athanor/train/spike.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "athanor/base/error.h"

namespace athanor {

namespace {
constexpr size_t least_steps = 20;  // before that a deviation means little
}

double SpikeDetector::limit(const std::deque<double>& values) const {
  if (options_.policy == SpikePolicy::off || values.size() < least_steps) {
    return std::numeric_limits<double>::infinity();
  }
  double mean = 0, squares = 0;
  for (const double value : values) mean += value;
  mean /= static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return mean + options_.z_score * std::max(deviation, 1e-3 * std::abs(mean));
}

std::string SpikeDetector::judge(double loss, double norm) const {
  if (loss > loss_limit()) return fmt::format("loss spike ({:.4g} > {:.4g})", loss, loss_limit());
  if (norm > norm_limit()) return fmt::format("gradient norm spike ({:.4g} > {:.4g})", norm, norm_limit());
  return {};
}

void SpikeDetector::record(double loss, double norm) {
  const auto add = [&](std::deque<double>& values, double value, double most) {
    if (!std::isfinite(value) || value > most) return;
    values.push_back(value);
    if (values.size() > static_cast<size_t>(options_.window)) values.pop_front();
  };
  add(losses_, loss, loss_limit());
  add(norms_, norm, norm_limit());
}

std::string SpikeDetector::to_text() const {
  std::string text = fmt::format("{} {}", losses_.size(), norms_.size());
  for (const auto* values : {&losses_, &norms_}) {
    for (const double value : *values) text += fmt::format(" {}", value);
  }
  return text;
}

void SpikeDetector::restore(const std::string& text) {
  std::istringstream stream(text);
  size_t losses = 0, norms = 0;
  stream >> losses >> norms;
  const auto read = [&](std::deque<double>& values, size_t count) {
    values.clear();
    for (size_t i = 0; i < count && stream; ++i) {
      double value = 0;
      if (stream >> value) values.push_back(value);
    }
  };
  read(losses_, losses);
  read(norms_, norms);
  if (!stream || losses_.size() != losses || norms_.size() != norms) {
    throw_user_error("the checkpoint's record of recent losses cannot be read", "the checkpoint was damaged");
  }
}

}  // namespace athanor
