#include "athanor/data/batch.h"

#include <algorithm>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

SampleSet::SampleSet(std::shared_ptr<const TokenSource> tokens, Sampler sampler, BatchOptions options)
    : tokens_(std::move(tokens)), sampler_(std::move(sampler)), options_(options) {
  ATHANOR_ASSERT(sampler_.range().end <= tokens_->token_count());
}

Batch SampleSet::cut(std::span<const int64_t> sample_ids) const {
  const auto rows = sample_ids.size();
  const auto elements = rows * static_cast<size_t>(sampler_.sequence_length());
  Batch batch{.samples = static_cast<int64_t>(rows),
              .sequence_length = sampler_.sequence_length(),
              .token_ids = std::vector<int32_t>(elements),
              .labels = std::vector<int32_t>(elements, ignored_label),
              .positions = std::vector<int32_t>(elements),
              .documents = std::vector<int32_t>(elements),
              .sample_ids = {sample_ids.begin(), sample_ids.end()}};
  for (size_t row = 0; row < rows; ++row) {
    if (sample_ids[row] != no_sample) cut_row(sample_ids[row], static_cast<int64_t>(row), batch);
  }
  return batch;
}

void SampleSet::cut_row(int64_t sample, int64_t row, Batch& batch) const {
  const auto length = static_cast<size_t>(batch.sequence_length);
  const auto part = [&](std::vector<int32_t>& array) {
    return std::span(array).subspan(static_cast<size_t>(row) * length, length);
  };
  const Window window = sampler_.window(sample);
  // Labels are the same tokens one place later, and the last one is the window's extra token.
  const auto ids = part(batch.token_ids), labels = part(batch.labels);
  tokens_->read(window.first_token, ids);
  std::copy(ids.begin() + 1, ids.end(), labels.begin());
  tokens_->read(window.first_token + batch.sequence_length, labels.last(1));

  const auto positions = part(batch.positions), documents = part(batch.documents);
  const bool by_document = options_.reset_positions || options_.mask_documents;
  int32_t position = 0, number = 0;
  int64_t document_end = by_document ? tokens_->document_at(window.first_token).end : 0;
  for (size_t i = 0; i < length; ++i) {
    const int64_t token = window.first_token + static_cast<int64_t>(i);
    if (by_document && token == document_end) {
      document_end = tokens_->document_at(token).end;
      if (options_.mask_documents) ++number;
      if (options_.reset_positions) position = 0;
    }
    positions[i] = position++;
    documents[i] = number;
  }
}

ValidationBatches::ValidationBatches(std::shared_ptr<const SampleSet> samples, int64_t micro_batch,
                                     int64_t max_samples)
    : samples_(std::move(samples)), micro_batch_(micro_batch) {
  ATHANOR_ASSERT(micro_batch >= 1 && max_samples >= 0 && !samples_->sampler().options().shuffle);
  const int64_t all = samples_->sampler().samples_per_epoch();
  sample_count_ = max_samples == 0 ? all : std::min(all, max_samples);
}

int64_t ValidationBatches::batch_count() const {
  return sample_count_ / micro_batch_ + (sample_count_ % micro_batch_ != 0 ? 1 : 0);
}

Batch ValidationBatches::batch(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < batch_count(), "batch {} of {}", number, batch_count());
  std::vector<int64_t> ids(static_cast<size_t>(micro_batch_), no_sample);
  for (size_t row = 0; row < ids.size(); ++row) {
    const int64_t sample = number * micro_batch_ + static_cast<int64_t>(row);
    if (sample < sample_count_) ids[row] = sample;
  }
  return samples_->cut(ids);
}

}  // namespace athanor
