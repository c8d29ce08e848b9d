// The loss of a whole run in bounded memory: what the charts are drawn from.
//
// Filled by loss_curve. Steps are gathered into buckets of equal numbers of steps; when there are too many,
// neighbours are merged, so that a run of any length is held evenly. Validation sets keep their points and
// lose every second one when there are too many. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace athanor {

struct LossBucket {
  int64_t first_step = 0, last_step = 0;
  int64_t count = 0;  // finite losses in it
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();

  double mean() const { return sum / static_cast<double>(count); }
  double middle_step() const {
    return 0.5 * (static_cast<double>(first_step) + static_cast<double>(last_step));
  }
};

struct ValidationPoint {
  int64_t step = 0;
  double loss = 0;
};

struct ValidationCurve {
  std::string set;
  std::vector<ValidationPoint> points;
};

class LossHistory {
 public:
  static constexpr size_t most_buckets = 1024;  // even
  static constexpr size_t most_validation_points = 256;
  static constexpr size_t most_validation_sets = 16;  // later ones are not kept

  // Steps rise. A loss that is not finite is counted apart.
  void add(int64_t step, double loss);
  void add_validation(int64_t step, const std::string& set, double loss);

  const std::vector<LossBucket>& buckets() const { return buckets_; }
  const std::vector<ValidationCurve>& validations() const { return validations_; }  // by first appearance
  int64_t last_step() const { return last_step_; }
  int64_t non_finite() const { return non_finite_; }
  std::optional<int64_t> last_non_finite_step() const { return last_non_finite_step_; }

 private:
  void halve();

  std::vector<LossBucket> buckets_;
  int64_t per_bucket_ = 1;
  std::vector<ValidationCurve> validations_;
  int64_t last_step_ = 0, non_finite_ = 0;
  std::optional<int64_t> last_non_finite_step_;
};

}  // namespace athanor
