#include "athanor/train/spike.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "athanor/base/error.h"

namespace athanor {

namespace {
constexpr size_t least_steps = 20;  // before that a deviation means little
}

SpikeDetector::SpikeDetector(const SpikeOptions& options) : options_(options) {
  ATHANOR_ASSERT(options.window > 0 && options.z_score > 0);
}

double SpikeDetector::limit(const std::deque<double>& values) const {
  const size_t needed = std::min(least_steps, static_cast<size_t>(options_.window));
  if (options_.policy == SpikePolicy::off || values.size() < needed) {
    return std::numeric_limits<double>::infinity();
  }
  double mean = 0, squares = 0;
  for (const double value : values) mean += value;
  mean /= static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(std::max<size_t>(values.size() - 1, 1)));
  return mean + options_.z_score * std::max(deviation, 1e-3 * std::abs(mean));
}

std::string SpikeDetector::judge(double loss, double norm) {
  std::string spike;
  const double loss_most = loss_limit(), norm_most = norm_limit();
  if (loss > loss_most) {
    spike = fmt::format("loss spike ({:.4g} > {:.4g})", loss, loss_most);
  } else if (norm > norm_most) {
    spike = fmt::format("gradient norm spike ({:.4g} > {:.4g})", norm, norm_most);
  }
  in_a_row_ = spike.empty() ? 0 : in_a_row_ + 1;
  const bool new_level = in_a_row_ > most_in_a_row && options_.policy == SpikePolicy::warn;
  if (new_level) {
    losses_.clear();
    norms_.clear();
    in_a_row_ = 0;
  }
  const auto add = [&](std::deque<double>& values, double value, double most) {
    if (!std::isfinite(value) || (value > most && !new_level)) return;
    values.push_back(value);
    if (values.size() > static_cast<size_t>(options_.window)) values.pop_front();
  };
  add(losses_, loss, loss_most);
  add(norms_, norm, norm_most);
  return spike;
}

std::string SpikeDetector::to_text() const {
  std::string text = fmt::format("{} {} {}", in_a_row_, losses_.size(), norms_.size());
  for (const auto* values : {&losses_, &norms_}) {
    for (const double value : *values) text += fmt::format(" {}", value);
  }
  return text;
}

void SpikeDetector::restore(const std::string& text) {
  std::istringstream stream(text);
  size_t losses = 0, norms = 0;
  stream >> in_a_row_ >> losses >> norms;
  const auto read = [&](std::deque<double>& values, size_t count) {
    values.clear();
    double value = 0;
    for (size_t i = 0; i < count && stream >> value; ++i) values.push_back(value);
  };
  read(losses_, losses);
  read(norms_, norms);
  if (to_text() != text) {
    throw_user_error("the checkpoint's record of recent losses cannot be read", "the checkpoint was damaged");
  }
  for (auto* values : {&losses_, &norms_}) {  // the window may have become shorter
    while (values->size() > static_cast<size_t>(options_.window)) values->pop_front();
  }
}

}  // namespace athanor
