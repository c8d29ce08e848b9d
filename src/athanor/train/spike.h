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
  explicit SpikeDetector(const SpikeOptions& options) : options_(options) {}

  // The largest values that are no spike, from the steps seen so far; infinity while there are too few.
  double loss_limit() const { return limit(losses_); }
  double norm_limit() const { return limit(norms_); }

  // What is wrong with a step, or nothing. A value beyond its limit is not taken into the statistics.
  std::string judge(double loss, double norm) const;
  void record(double loss, double norm);

  // The state that a checkpoint keeps, so that a resumed run judges as the uninterrupted one.
  std::string to_text() const;
  void restore(const std::string& text);  // throws a user error for a text that to_text did not write

 private:
  double limit(const std::deque<double>& values) const;
  SpikeOptions options_;
  std::deque<double> losses_, norms_;
};

}  // namespace athanor
