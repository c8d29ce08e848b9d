#include "athanor/data/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

SampleSet::SampleSet(std::shared_ptr<const TokenSource> tokens, Sampler sampler, BatchOptions options)
    : tokens_(std::move(tokens)), sampler_(std::move(sampler)), options_(options) {
  ATHANOR_ASSERT(sampler_.range().end <= tokens_->token_count());
}

SampleSet::SampleSet(std::shared_ptr<const TokenSource> tokens, std::shared_ptr<const PackedWindows> packing,
                     Sampler sampler)
    : tokens_(std::move(tokens)), sampler_(std::move(sampler)), packing_(std::move(packing)) {}

SampleSet SampleSet::packed(std::shared_ptr<const TokenSource> tokens, TokenRange range,
                            SamplerOptions sampler) {
  auto packing = std::make_shared<const PackedWindows>(*tokens, range, sampler.sequence_length);
  Sampler order(range, std::move(sampler), packing->window_count());
  return {std::move(tokens), std::move(packing), std::move(order)};
}

double SampleSet::padding() const {
  if (!packing_) return 0;
  const double all =
      static_cast<double>(packing_->window_count()) * static_cast<double>(sampler_.sequence_length());
  return 1 - static_cast<double>(packing_->places()) / all;
}

std::vector<int32_t> whole_indices(int64_t samples, int64_t sequence_length) {
  std::vector<int32_t> indices(static_cast<size_t>(samples * sequence_length));
  for (auto row = indices.begin(); row != indices.end(); row += sequence_length)
    std::iota(row, row + sequence_length, 0);
  return indices;
}

Batch empty_batch(std::span<const int64_t> sample_ids, int64_t sequence_length) {
  const auto elements = sample_ids.size() * static_cast<size_t>(sequence_length);
  return {.samples = static_cast<int64_t>(sample_ids.size()),
          .sequence_length = sequence_length,
          .token_ids = std::vector<int32_t>(elements),
          .labels = std::vector<int32_t>(elements, ignored_label),
          .positions = std::vector<int32_t>(elements),
          .documents = std::vector<int32_t>(elements),
          .indices = whole_indices(static_cast<int64_t>(sample_ids.size()), sequence_length),
          .sample_ids = {sample_ids.begin(), sample_ids.end()}};
}

Batch SampleSet::cut(std::span<const int64_t> sample_ids) const {
  Batch batch = empty_batch(sample_ids, sampler_.sequence_length());
  for (size_t row = 0; row < sample_ids.size(); ++row) {
    if (sample_ids[row] != no_sample) cut_row(sample_ids[row], static_cast<int64_t>(row), batch);
  }
  return batch;
}

void SampleSet::cut_row(int64_t sample, int64_t row, Batch& batch) const {
  const auto length = static_cast<size_t>(batch.sequence_length);
  const auto part = [&](std::vector<int32_t>& array) {
    return std::span(array).subspan(static_cast<size_t>(row) * length, length);
  };
  const Row arrays{part(batch.token_ids), part(batch.labels), part(batch.positions), part(batch.documents)};
  const Window window = sampler_.window(sample);
  if (packing_)
    cut_packed(window.index, arrays);
  else
    cut_stream(window.first_token, arrays);
}

namespace {

// Labels that are no question to the model: labels[i] is token first + i of the source.
void ignore_unlearned(const TokenSource& tokens, int64_t first, std::span<int32_t> labels) {
  TokenRange range{first, first + static_cast<int64_t>(labels.size())};
  while (range.begin < range.end) {
    const TokenRange found = tokens.unlearned_in(range);
    for (int64_t token = found.begin; token < found.end; ++token)
      labels[static_cast<size_t>(token - first)] = ignored_label;
    range.begin = found.end;
  }
}

// Labels are the same tokens one place later, and the last one is a token more.
void read_pair(const TokenSource& tokens, int64_t first, std::span<int32_t> ids, std::span<int32_t> labels) {
  tokens.read(first, ids);
  std::copy(ids.begin() + 1, ids.end(), labels.begin());
  tokens.read(first + static_cast<int64_t>(ids.size()), labels.last(1));
  ignore_unlearned(tokens, first + 1, labels);
}

}  // namespace

void SampleSet::cut_stream(int64_t first_token, const Row& row) const {
  read_pair(*tokens_, first_token, row.token_ids, row.labels);
  const bool by_document = options_.reset_positions || options_.mask_documents;
  int32_t position = 0, number = 0;
  int64_t document_end = by_document ? tokens_->document_at(first_token).end : 0;
  for (size_t i = 0; i < row.positions.size(); ++i) {
    const int64_t token = first_token + static_cast<int64_t>(i);
    if (by_document && token == document_end) {
      document_end = tokens_->document_at(token).end;
      if (options_.mask_documents) ++number;
      if (options_.reset_positions) position = 0;
    }
    row.positions[i] = position++;
    row.documents[i] = number;
  }
}

void SampleSet::cut_packed(int64_t window, const Row& row) const {
  size_t place = 0;
  int32_t number = 0;
  const auto count_on = [&](size_t places) {
    for (size_t i = 0; i < places; ++i) {
      row.positions[place + i] = static_cast<int32_t>(i);
      row.documents[place + i] = number;
    }
    place += places;
    ++number;
  };
  for (const TokenRange& piece : packing_->pieces(window)) {
    const auto places = static_cast<size_t>(piece.size() - 1);
    read_pair(*tokens_, piece.begin, row.token_ids.subspan(place, places), row.labels.subspan(place, places));
    count_on(places);
  }
  count_on(row.positions.size() - place);
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

std::vector<int64_t> ValidationBatches::sample_ids(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < batch_count(), "batch {} of {}", number, batch_count());
  std::vector<int64_t> ids(static_cast<size_t>(micro_batch_), no_sample);
  for (size_t row = 0; row < ids.size(); ++row) {
    const int64_t sample = number * micro_batch_ + static_cast<int64_t>(row);
    if (sample < sample_count_) ids[row] = sample;
  }
  return ids;
}

}  // namespace athanor
