// What a step program is given from outside for one step, and nothing else is.
//
// Filled by the training loop, read by kernels. Thread safety: constant while a step runs.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "athanor/base/labels.h"

namespace athanor {

// One micro-batch in host memory; all pointers stay valid for the step. B samples of S tokens.
struct HostBatch {
  const int32_t* token_ids = nullptr;   // [B,S]
  const int32_t* labels = nullptr;      // [B,S] next token, or ignored_label
  const int32_t* positions = nullptr;   // [B,S] position within the document
  const int32_t* documents = nullptr;   // [B,S] number of the document within the sample
  const int32_t* indices = nullptr;     // [B,S] index within the sample, whatever part of it a rank holds
  const int64_t* sample_ids = nullptr;  // [B]
  // For programs with a key-value cache; positions count the tokens of the sequence before each token.
  const int32_t* lengths = nullptr;     // [B] tokens that count, at the front of S; the rest only fills up
  const int32_t* cache_rows = nullptr;  // [B] row of the cache that holds the sequence
};

struct StepInputs {
  int64_t step = 0;            // steps finished before this one: keys the random numbers
  int64_t optimizer_step = 1;  // number of this update, from 1: bias correction; skipped steps do not count
  uint64_t seed = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  // The update is skipped when the mean loss or the gradient norm is above these.
  double loss_limit = std::numeric_limits<double>::infinity();
  double norm_limit = std::numeric_limits<double>::infinity();
  std::vector<HostBatch> micro_batches;
};

}  // namespace athanor
