// The samples of a training run: one data set, or several blended by weight.
//
// Sample id s belongs to a source by BlendOrder and is the next sample of it: a source's samples are counted
// on their own, so each is walked epoch by epoch whatever the others do. A mix that changes on resume begins
// anew at the sample where it changes, and the counters go on. So a sample is a pure function of seed, id and
// the history of the mix. Called by train. Thread safety: may be read by many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "athanor/data/batch.h"
#include "athanor/data/blend.h"
#include "athanor/data/data_position.h"

namespace athanor {

struct MixSource {
  std::string name = {};     // letters, digits, _ and -
  std::string weight = "1";  // a decimal number
  std::shared_ptr<const SampleSet> samples = {};
};

class SampleMix final : public SampleReader {
 public:
  // From sample 0. Sources have different names and one sequence length, seed and way of cutting.
  explicit SampleMix(std::vector<MixSource> sources);

  const std::vector<MixSource>& sources() const { return sources_; }
  int64_t sequence_length() const { return sources_.front().samples->sampler().sequence_length(); }
  // Largest id of any source, plus 1.
  int64_t vocabulary_size() const;
  Batch cut(std::span<const int64_t> sample_ids) const override;

  struct Place {
    size_t source = 0;
    int64_t sample = 0;  // of that source
  };
  Place place_of(int64_t sample) const;  // not before the mix began
  // Samples of a source among the first `samples` of the run, at most.
  int64_t most_of(size_t source, int64_t samples) const;

  // Where a run stands after `consumed` samples.
  DataPosition position(int64_t consumed) const;
  // The mix that goes on from `saved`, with the sources of this one. User error, naming what differs, if ids
  // no longer mean the same samples; other sources and weights are let through by `allow_change`, if sources
  // that stay are the same data.
  SampleMix resumed(const DataPosition& saved, bool allow_change) const;

 private:
  SampleMix(std::vector<MixSource> sources, int64_t begin, std::vector<int64_t> before, BlendOrder order,
            std::vector<SourcePosition> gone);

  std::vector<MixSource> sources_;
  int64_t begin_ = 0;                 // the sample at which this mix began
  std::vector<int64_t> before_;       // samples of each source that were drawn before
  BlendOrder order_;                  // of the samples from begin_ on
  std::vector<SourcePosition> gone_;  // what was drawn from sources that are no longer in the mix
};

}  // namespace athanor
