#include "athanor/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {

namespace {

// Probabilities before division by their sum.
double weight_of(double logit, double most, double temperature) {
  return logit == most ? 1 : std::exp((logit - most) / temperature);
}

// The number of `weights` in front that reach `share` of `total`, or 0 if they do not.
size_t reaching(std::span<const double> weights, double share, double total) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= share * total) return i + 1;
  }
  return 0;
}

class Candidates {
 public:
  Candidates(std::span<const double> logits, const SamplingOptions& options, double most)
      : logits_(logits), options_(options), most_(most), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    kept_ = options.top_k > 0 ? std::min(order_.size(), static_cast<size_t>(options.top_k)) : order_.size();
  }

  // The likeliest that may be drawn, by falling probability, with their weights.
  void choose() {
    if (options_.top_p >= 1) return sort(kept_);
    double total = 0;
    if (kept_ < order_.size()) {
      sort(kept_);
      total = std::accumulate(weights.begin(), weights.end(), 0.0);
    } else {
      for (const double logit : logits_) total += weight_of(logit, most_, options_.temperature);
    }
    // Few make up most of it: sort no more than it takes.
    for (size_t count = std::min<size_t>(64, kept_);; count = std::min(8 * count, kept_)) {
      sort(count);
      const size_t enough = reaching(weights, options_.top_p, total);
      if (enough == 0 && count < kept_) continue;
      if (enough > 0) weights.resize(enough);
      return;
    }
  }

  int32_t id(size_t place) const { return order_[place]; }
  std::vector<double> weights;

 private:
  void sort(size_t count) {
    std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(count), order_.end(),
                      [&](int32_t a, int32_t b) {
                        const double x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
                        return x != y ? x > y : a < b;
                      });
    weights.resize(count);
    for (size_t i = 0; i < count; ++i)
      weights[i] = weight_of(logits_[static_cast<size_t>(order_[i])], most_, options_.temperature);
  }

  std::span<const double> logits_;
  const SamplingOptions& options_;
  double most_;
  std::vector<int32_t> order_;
  size_t kept_;
};

}  // namespace

int32_t draw_token(std::span<const double> logits, const SamplingOptions& options, const RandomKey& key,
                   int64_t draw) {
  ATHANOR_ASSERT(!logits.empty());
  for (const double logit : logits) {
    if (std::isnan(logit)) {
      throw Error(ErrorKind::stop_job, "the model's prediction is not a number",
                  "its weights are damaged, or too large for this precision");
    }
  }
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0 || options.top_k == 1) return static_cast<int32_t>(likeliest - logits.begin());
  const auto words = random_block(key, static_cast<uint64_t>(draw));
  const double share = uniform_double(words[0], words[1]), most = *likeliest;
  const bool all =
      (options.top_k <= 0 || options.top_k >= static_cast<int64_t>(logits.size())) && options.top_p >= 1;
  if (all) {  // in the order of ids: nothing needs sorting
    double total = 0, sum = 0;
    for (const double logit : logits) total += weight_of(logit, most, options.temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      sum += weight_of(logits[i], most, options.temperature);
      if (sum > share * total) return static_cast<int32_t>(i);
    }
    return static_cast<int32_t>(likeliest - logits.begin());
  }
  Candidates candidates(logits, options, most);
  candidates.choose();
  const std::vector<double>& weights = candidates.weights;
  const double at = share * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > at) return candidates.id(i);
  }
  return candidates.id(0);
}

}  // namespace athanor
