// Weights that are not read any more once a signal asks for an end: what writes them ends with an error and
// leaves no half-written folder behind, as the signal alone would.
//
// Used by import and export. Thread safety: as the reader's; one at a time (train/interrupt.h).
#pragma once

#include "athanor/base/error.h"
#include "athanor/checkpoint/weight_reader.h"
#include "athanor/train/interrupt.h"

namespace athanor {

class StoppableWeights final : public WeightReader {
 public:
  explicit StoppableWeights(const WeightReader& weights) : weights_(weights) {}
  const std::string& path() const override { return weights_.path(); }
  std::span<const WeightEntry> entries() const override { return weights_.entries(); }
  void read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const override {
    if (const std::string reason = interrupts_.stop_reason(); !reason.empty())
      throw_user_error(fmt::format("stopped: {}; nothing was written", reason), "run the command again");
    weights_.read(entry, dtype, out);
  }

 private:
  const WeightReader& weights_;
  const Interrupts interrupts_{0, 0};
};

}  // namespace athanor
