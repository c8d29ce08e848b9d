// Where a run stands in its data, and which data that was: what a checkpoint keeps of the data.
//
// The unit is samples, whatever batch sizes, micro-batches or ranks consumed them. Called by train, which
// hands the text to the checkpoint. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "athanor/data/batch.h"

namespace athanor {

struct DataPosition {
  int64_t consumed_samples = 0;  // the next sample's global id
  // What the ids mean: they are only the same samples with the same data and the same order.
  uint32_t data_identity = 0;
  TokenRange range;
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  bool shuffle = true;

  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

DataPosition position_in(const SampleSet& samples, int64_t consumed_samples);

// Lines of "name value". `parse` refuses (user error) anything that `to_text` would not write.
std::string to_text(const DataPosition& position);
DataPosition parse_data_position(std::string_view text);

// The consumed samples of a saved position, if its ids mean the same samples in `samples`; otherwise a
// user error that names what differs.
int64_t resume_from(const DataPosition& saved, const SampleSet& samples);

}  // namespace athanor
