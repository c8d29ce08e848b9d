// Where a run stands in its data, and which data that was: what a checkpoint keeps of the data.
//
// The unit is samples, whatever batch sizes, micro-batches or ranks consumed them. Called by train, which
// hands the text to the checkpoint. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/data/token_source.h"

namespace athanor {

// One source of the run's mix, or one that was in it before.
struct SourcePosition {
  std::string name = {};
  std::string weight = {};  // in the mix at hand, as it was written; empty: no longer in it
  uint32_t identity = 0;    // of its tokens
  TokenRange range = {};
  int64_t before = 0;  // its samples that were drawn before the mix at hand began
  int64_t drawn = 0;   // its samples that were drawn in all

  friend bool operator==(const SourcePosition&, const SourcePosition&) = default;
};

struct DataPosition {
  int64_t consumed_samples = 0;  // the next sample's global id
  // What the ids mean: they are only the same samples with the same data and the same order.
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool packed = false;
  int64_t mix_begin = 0;  // the sample at which the mix at hand began
  std::vector<SourcePosition> sources = {};

  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

// A run of one source named "train" has the text of version 1, as it always had; any other version 2.
// `parse` refuses (user error) anything that `to_text` would not write.
std::string to_text(const DataPosition& position);
DataPosition parse_data_position(std::string_view text);

}  // namespace athanor
