#include "athanor/observe/loss_history.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace athanor {

void LossHistory::halve() {
  for (size_t i = 0; i < buckets_.size() / 2; ++i) {
    LossBucket merged = buckets_[2 * i];
    const LossBucket& second = buckets_[2 * i + 1];
    merged.last_step = second.last_step;
    merged.count += second.count;
    merged.sum += second.sum;
    merged.least = std::min(merged.least, second.least);
    merged.greatest = std::max(merged.greatest, second.greatest);
    buckets_[i] = merged;
  }
  buckets_.resize(buckets_.size() / 2);
  per_bucket_ *= 2;
}

void LossHistory::add(int64_t step, double loss) {
  last_step_ = std::max(last_step_, step);
  // Sums of many losses near the largest double would not stay finite.
  if (!std::isfinite(loss) || std::abs(loss) > 1e100) {
    ++non_finite_;
    last_non_finite_step_ = step;
    return;
  }
  if (buckets_.empty() || buckets_.back().count == per_bucket_) {
    if (buckets_.size() == most_buckets) halve();
    buckets_.push_back({.first_step = step});
  }
  LossBucket& bucket = buckets_.back();
  bucket.last_step = step;
  ++bucket.count;
  bucket.sum += loss;
  bucket.least = std::min(bucket.least, loss);
  bucket.greatest = std::max(bucket.greatest, loss);
}

void LossHistory::add_validation(int64_t step, const std::string& set, double loss) {
  last_step_ = std::max(last_step_, step);
  if (!std::isfinite(loss) || std::abs(loss) > 1e100) return;
  auto curve = std::find_if(validations_.begin(), validations_.end(),
                            [&](const ValidationCurve& candidate) { return candidate.set == set; });
  if (curve == validations_.end()) {
    if (validations_.size() == most_validation_sets) return;
    curve = validations_.insert(curve, {.set = set, .points = {}});
  }
  auto& points = curve->points;
  if (points.size() == most_validation_points) {
    // The first stays, and so does the last, which is the one just before the new one.
    for (size_t i = 1; i < points.size() / 2; ++i) points[i] = points[2 * i];
    points[points.size() / 2] = points.back();
    points.resize(points.size() / 2 + 1);
  }
  points.push_back({step, loss});
}

}  // namespace athanor
