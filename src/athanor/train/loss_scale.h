// Dynamic loss scaling for fp16: the factor that lifts gradients out of the numbers that fp16 cannot hold.
//
// The loss gradient is multiplied by the scale, and gradients are divided by it before their norm is taken,
// so clipping, limits and reports see true values. An overflow shows at the commit point as a norm that is
// not finite: the step is skipped and the scale lowered; after enough steps without one it is raised again
// (Micikevicius et al., "Mixed Precision Training", 2018). Everything is decided from the reduced norm and
// loss of the step, which are equal on all ranks, so all ranks keep the same scale.
//
// Called by the training loop once a step. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "athanor/train/options.h"

namespace athanor {

class LossScaler {
 public:
  // Not `dynamic`: the scale is 1 and nothing is an overflow. User error: options that contradict each other.
  LossScaler(const LossScaleOptions& options, bool dynamic);

  double scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }

  // Whether a step failed by the scale's doing: its loss is finite and its gradient norm is not.
  bool overflowed(double loss, double gradient_norm) const;
  bool at_minimum() const { return scale_ <= options_.minimum; }

  // Takes in a step with valid tokens.
  void update(bool overflow);

  // The state that a checkpoint keeps, so that a resumed run scales as the uninterrupted one.
  std::string to_text() const;
  void restore(const std::string& text);  // throws a user error for a text that to_text did not write

 private:
  LossScaleOptions options_;
  bool dynamic_;
  double scale_ = 1;
  int64_t good_steps_ = 0;  // without overflow, since the scale last changed
};

}  // namespace athanor
