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
#include "athanor/data/packing.h"
#include "athanor/data/sampler.h"
#include "athanor/data/token_source.h"

namespace athanor {

inline constexpr int64_t no_sample = -1;  // a row that only fills up a batch

// All arrays are [samples, sequence_length], row-major.
struct Batch {
  int64_t samples = 0, sequence_length = 0;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> labels;      // the token that follows; ignored_label where it is not learned
  std::vector<int32_t> positions;   // counted from 0 in the window or, by option, in the document
  std::vector<int32_t> documents;   // by option counted from 0 in the window: attention stays within one
  std::vector<int32_t> indices;     // places in the whole sequence, which a rank may have only parts of
  std::vector<int64_t> sample_ids;  // [samples]
};

// 0 .. sequence_length - 1 for each sample: the indices of whole sequences.
std::vector<int32_t> whole_indices(int64_t samples, int64_t sequence_length);

// Where batches come from, by sample id.
class SampleReader {
 public:
  virtual ~SampleReader() = default;
  // The batch with these global sample ids, one a row. A row of `no_sample` has zeros and ignored labels.
  virtual Batch cut(std::span<const int64_t> sample_ids) const = 0;
};

// Rows of no sample, with these ids.
Batch empty_batch(std::span<const int64_t> sample_ids, int64_t sequence_length);

struct BatchOptions {
  bool reset_positions = false;  // positions begin again where a document begins
  bool mask_documents = false;   // documents are numbered; otherwise all are 0
};

// The samples of one data set: windows of its stream of tokens, or of packed documents. In a packed window
// each document has a number and positions of its own, whatever the options say; what is left over at the end
// is filled with zeros of yet another document and ignored labels.
class SampleSet final : public SampleReader {
 public:
  SampleSet(std::shared_ptr<const TokenSource> tokens, Sampler sampler, BatchOptions options);
  // Of whole documents of `range`. Refuses (user error, with the numbers) a range without a window.
  static SampleSet packed(std::shared_ptr<const TokenSource> tokens, TokenRange range,
                          SamplerOptions sampler);

  const TokenSource& tokens() const { return *tokens_; }
  const Sampler& sampler() const { return sampler_; }
  bool is_packed() const { return packing_ != nullptr; }
  // Share of the places of a window that hold no document, in all; 0 without packing.
  double padding() const;
  Batch cut(std::span<const int64_t> sample_ids) const override;
  // Sample `sample` of this set as row `row` of a batch of empty rows.
  void cut_row(int64_t sample, int64_t row, Batch& batch) const;

 private:
  SampleSet(std::shared_ptr<const TokenSource> tokens, std::shared_ptr<const PackedWindows> packing,
            Sampler sampler);
  struct Row {
    std::span<int32_t> token_ids, labels, positions, documents;
  };
  void cut_stream(int64_t first_token, const Row& row) const;
  void cut_packed(int64_t window, const Row& row) const;

  std::shared_ptr<const TokenSource> tokens_;
  Sampler sampler_;
  BatchOptions options_;
  std::shared_ptr<const PackedWindows> packing_;
};

// The batches of a validation pass: samples 0, 1, 2 ... of a set that is not shuffled. Batches are asked
// for by number, so every pass begins at the beginning and sees the same.
class ValidationBatches {
 public:
  // At most `max_samples` samples (0: all of one epoch), `micro_batch` a batch of all ranks together.
  ValidationBatches(std::shared_ptr<const SampleSet> samples, int64_t micro_batch, int64_t max_samples);

  int64_t sample_count() const { return sample_count_; }
  int64_t batch_count() const;
  // Of a batch; the last one is filled up with rows of no sample.
  std::vector<int64_t> sample_ids(int64_t number) const;
  Batch batch(int64_t number) const { return samples_->cut(sample_ids(number)); }

 private:
  std::shared_ptr<const SampleSet> samples_;
  int64_t micro_batch_, sample_count_;
};

}  // namespace athanor
