#include "athanor/train/loss_scale.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "athanor/base/error.h"

namespace athanor {

namespace {
// Sums of squares of gradients this large are still finite in fp64, and fp32 gradients overflow before it.
constexpr double greatest_scale = 0x1p100;
}  // namespace

LossScaler::LossScaler(const LossScaleOptions& options, bool dynamic) : options_(options), dynamic_(dynamic) {
  if (!dynamic) return;
  if (options.initial < options.minimum) {
    throw_user_error(fmt::format("loss_scale.initial is {}, below loss_scale.minimum of {}", options.initial,
                                 options.minimum),
                     "raise the one or lower the other");
  }
  ATHANOR_ASSERT(options.minimum > 0 && options.growth_interval > 0 && options.growth_factor >= 1 &&
                 options.backoff_factor > 0 && options.backoff_factor < 1);
  scale_ = options.initial;
}

bool LossScaler::overflowed(double loss, double gradient_norm) const {
  return dynamic_ && std::isfinite(loss) && !std::isfinite(gradient_norm);
}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    scale_ = std::max(options_.minimum, scale_ * options_.backoff_factor);
    good_steps_ = 0;
  } else if (++good_steps_ >= options_.growth_interval) {
    scale_ = std::max(scale_, std::min(greatest_scale, scale_ * options_.growth_factor));
    good_steps_ = 0;
  }
}

std::string LossScaler::to_text() const {
  return fmt::format("{} {}", scale_, good_steps_);
}

void LossScaler::restore(const std::string& text) {
  std::istringstream stream(text);
  double scale = 0;
  int64_t good_steps = 0;
  stream >> scale >> good_steps;
  LossScaler read = *this;
  read.scale_ = scale;
  read.good_steps_ = good_steps;
  if (!(std::isfinite(scale) && scale > 0) || good_steps < 0 || read.to_text() != text) {
    throw_user_error("the checkpoint's loss scale cannot be read",
                     "it was written by another version or damaged");
  }
  *this = std::move(read);
}

}  // namespace athanor
