// Micro-batches: token ids, labels, positions and document numbers of a few samples.
//
// Called by the loader and by evaluation. Thread safety: a Batch is a value; a SampleSet may be used from
// several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "athanor/base/labels.h"
#include "athanor/data/sampler.h"
#include "athanor/data/token_source.h"

namespace athanor {

inline constexpr int64_t no_sample = -1;  // a row that only fills up a batch

// All arrays are [samples, sequence_length], row-major.
struct Batch {
  int64_t samples = 0, sequence_length = 0;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> labels;      // the token that follows, or ignored_label
  std::vector<int32_t> positions;   // counted from 0 in the window or, by option, in the document
  std::vector<int32_t> documents;   // by option counted from 0 in the window: attention stays within one
  std::vector<int64_t> sample_ids;  // [samples]
};

struct BatchOptions {
  bool reset_positions = false;  // positions begin again where a document begins
  bool mask_documents = false;   // documents are numbered; otherwise all are 0
};

// The samples of one data set.
class SampleSet {
 public:
  SampleSet(std::shared_ptr<const TokenSource> tokens, Sampler sampler, BatchOptions options);

  const TokenSource& tokens() const { return *tokens_; }
  const Sampler& sampler() const { return sampler_; }
  // The batch with these global sample ids, one a row. A row of `no_sample` has zeros and ignored labels.
  Batch cut(std::span<const int64_t> sample_ids) const;

 private:
  void cut_row(int64_t sample, int64_t row, Batch& batch) const;

  std::shared_ptr<const TokenSource> tokens_;
  Sampler sampler_;
  BatchOptions options_;
};

// The batches of a validation pass: samples 0, 1, 2 ... of a set that is not shuffled. Batches are asked
// for by number, so every pass begins at the beginning and sees the same.
class ValidationBatches {
 public:
  // At most `max_samples` samples (0: all of one epoch), `micro_batch` a batch.
  ValidationBatches(std::shared_ptr<const SampleSet> samples, int64_t micro_batch, int64_t max_samples);

  int64_t sample_count() const { return sample_count_; }
  int64_t batch_count() const;
  // The last batch is filled up with rows of no sample.
  Batch batch(int64_t number) const;

 private:
  std::shared_ptr<const SampleSet> samples_;
  int64_t micro_batch_, sample_count_;
};

}  // namespace athanor
