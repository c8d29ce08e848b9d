#include "athanor/data/batch_part.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

namespace {

// Appends places [range.begin, range.end) of a row, what lies beyond its `length` filled up.
class RowCopier {
 public:
  RowCopier(const Batch& whole, int64_t row, Batch& part)
      : whole_(whole), part_(part), length_(whole.sequence_length), first_(row * length_) {
    const auto begin = whole.documents.begin() + first_;
    if (length_ == 0) return;
    // A row that is filled up itself has the largest number already; the filler joins that document.
    const int32_t largest = *std::max_element(begin, begin + length_);
    filler_document_ = largest < std::numeric_limits<int32_t>::max() ? largest + 1 : largest;
  }

  void append(const TokenRange& range) {
    const TokenRange real{std::min(range.begin, length_), std::min(range.end, length_)};
    copy(whole_.token_ids, part_.token_ids, real);
    copy(whole_.labels, part_.labels, real);
    copy(whole_.positions, part_.positions, real);
    copy(whole_.documents, part_.documents, real);
    for (int64_t place = std::max(range.begin, length_); place < range.end; ++place) {
      part_.token_ids.push_back(0);
      part_.labels.push_back(ignored_label);
      // Not counted on: a sequence may be filled up by more places than the model has positions.
      part_.positions.push_back(0);
      part_.documents.push_back(filler_document_);
    }
    for (int64_t place = range.begin; place < range.end; ++place)
      part_.indices.push_back(static_cast<int32_t>(place));
  }

 private:
  void copy(const std::vector<int32_t>& from, std::vector<int32_t>& to, const TokenRange& range) const {
    const auto begin = from.begin() + first_;
    to.insert(to.end(), begin + range.begin, begin + range.end);
  }

  const Batch& whole_;
  Batch& part_;
  int64_t length_, first_;
  int32_t filler_document_ = 0;
};

Batch take(const Batch& whole, const std::vector<TokenRange>& places) {
  Batch part;
  part.samples = whole.samples;
  for (const TokenRange& range : places) part.sequence_length += range.size();
  const auto elements = static_cast<size_t>(part.samples * part.sequence_length);
  for (auto* array : {&part.token_ids, &part.labels, &part.positions, &part.documents, &part.indices})
    array->reserve(elements);
  for (int64_t row = 0; row < whole.samples; ++row) {
    RowCopier copier(whole, row, part);
    for (const TokenRange& range : places) copier.append(range);
  }
  part.sample_ids = whole.sample_ids;
  return part;
}

}  // namespace

PartReader::PartReader(std::shared_ptr<const SampleReader> samples, BatchPart part)
    : samples_(std::move(samples)), part_(std::move(part)) {}

Batch PartReader::cut(std::span<const int64_t> sample_ids) const {
  ATHANOR_ASSERT(static_cast<int64_t>(sample_ids.size()) == part_.samples, "{} samples and a part of {}",
                 sample_ids.size(), part_.samples);
  Batch own = samples_->cut(
      sample_ids.subspan(static_cast<size_t>(part_.rows.begin), static_cast<size_t>(part_.rows.size())));
  const bool all = part_.places == std::vector<TokenRange>{{0, own.sequence_length}};
  return all ? own : take(own, part_.places);
}

}  // namespace athanor
