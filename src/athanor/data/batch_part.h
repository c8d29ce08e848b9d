// What one of many ranks computes of a batch: some of its samples, and of each some places of its sequence.
//
// Called by train. The samples of a step are the same for any number of ranks; this says only who has which.
// Thread safety: values and pure functions.
#pragma once

#include <memory>

#include "athanor/data/batch.h"

namespace athanor {

// Thread safety: value.
struct BatchPart {
  int64_t samples = 0;  // of the micro-batches of all ranks together
  TokenRange rows;      // of them, this rank's
  // Places of the sequence that the rank has, in the order in which it stores them. They may go beyond the
  // samples' length: what fills up there is a document of its own without labels.
  std::vector<TokenRange> places;

  // Of one rank that has everything.
  static BatchPart whole(int64_t samples, int64_t sequence_length) {
    return {samples, {0, samples}, {{0, sequence_length}}};
  }
};

// Reads the rank's samples only, and keeps its places of them. `indices` are those of the whole sequence.
class PartReader final : public SampleReader {
 public:
  PartReader(std::shared_ptr<const SampleReader> samples, BatchPart part);
  // Of the ids of all ranks' micro-batches, as many as part.samples.
  Batch cut(std::span<const int64_t> sample_ids) const override;

 private:
  std::shared_ptr<const SampleReader> samples_;
  BatchPart part_;
};

}  // namespace athanor
