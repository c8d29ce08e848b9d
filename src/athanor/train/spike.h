// Watches loss and gradient norm for spikes: values many standard deviations above their recent mean.
//
// Called by the training loop once a step. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "athanor/train/options.h"

namespace athanor {

class SpikeDetector {
 public:
  // More spikes one after the other are no spikes but another level.
  static constexpr int64_t most_in_a_row = 20;

  explicit SpikeDetector(const SpikeOptions& options);

  // The largest values that are no spike, from the steps seen so far; infinity while there are too few.
  double loss_limit() const { return limit(losses_); }
  double norm_limit() const { return limit(norms_); }

  // Takes in a step; says what is wrong with it, or nothing. A value beyond its limit stays out of the
  // statistics, so that one spike does not hide the next. Under the policy `warn` they begin anew on another
  // level.
  std::string judge(double loss, double norm);
  // Spikes since the last step that was none.
  int64_t in_a_row() const { return in_a_row_; }

  // The state that a checkpoint keeps, so that a resumed run judges as the uninterrupted one.
  std::string to_text() const;
  void restore(const std::string& text);  // throws a user error for a text that to_text did not write

 private:
  double limit(const std::deque<double>& values) const;
  SpikeOptions options_;
  std::deque<double> losses_, norms_;
  int64_t in_a_row_ = 0;
};

}  // namespace athanor
