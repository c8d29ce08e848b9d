#include "athanor/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/base/philox.h"

namespace athanor {

TokenStream::TokenStream(std::vector<std::shared_ptr<const TokenSource>> parts)
    : parts_(std::move(parts)), first_tokens_{0}, first_documents_{0} {
  Crc32c identities;
  for (const auto& part : parts_) {
    if (part->token_count() > std::numeric_limits<int64_t>::max() - first_tokens_.back()) {
      throw_user_error("the data files hold more than 2^63 tokens together", "give fewer of them");
    }
    first_tokens_.push_back(first_tokens_.back() + part->token_count());
    first_documents_.push_back(first_documents_.back() + part->document_count());
    vocabulary_size_ = std::max(vocabulary_size_, part->vocabulary_size());
    if (const uint32_t made_by = part->tokenizer_identity(); made_by != 0) {
      if (tokenizer_identity_ != 0 && made_by != tokenizer_identity_) {
        throw_user_error(fmt::format("the data files were made with different tokenizers ({:08x} and {:08x})",
                                     tokenizer_identity_, made_by),
                         "their ids do not mean the same; make them with one tokenizer");
      }
      tokenizer_identity_ = made_by;
    }
    const uint32_t identity = part->identity();
    identities.update(std::as_bytes(std::span(&identity, 1)));
  }
  identity_ = identities.value();
}

size_t TokenStream::part_of(int64_t position) const {
  ATHANOR_ASSERT(position >= 0 && position < token_count(), "token {} of {}", position, token_count());
  // The last part that starts at or before the position; empty parts share their start with the next one.
  const auto after = std::upper_bound(first_tokens_.begin(), first_tokens_.end(), position);
  return static_cast<size_t>(after - first_tokens_.begin()) - 1;
}

void TokenStream::read(int64_t first, std::span<int32_t> out) const {
  while (!out.empty()) {
    const size_t part = part_of(first);
    const int64_t left = first_tokens_[part + 1] - first;
    const auto count = std::min(out.size(), static_cast<size_t>(left));
    parts_[part]->read(first - first_tokens_[part], out.first(count));
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

Document TokenStream::document_at(int64_t position) const {
  const size_t part = part_of(position);
  return shifted(parts_[part]->document_at(position - first_tokens_[part]), part);
}

Document TokenStream::document(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < document_count(), "document {} of {}", number, document_count());
  const auto after = std::upper_bound(first_documents_.begin(), first_documents_.end(), number);
  const auto part = static_cast<size_t>(after - first_documents_.begin()) - 1;
  return shifted(parts_[part]->document(number - first_documents_[part]), part);
}

TokenRange TokenStream::unlearned_in(TokenRange range) const {
  while (range.begin < range.end) {
    const size_t part = part_of(range.begin);
    const int64_t shift = first_tokens_[part], end = std::min(range.end, first_tokens_[part + 1]);
    const TokenRange found = parts_[part]->unlearned_in({range.begin - shift, end - shift});
    if (found.size() > 0) return {found.begin + shift, found.end + shift};
    range.begin = end;
  }
  return {range.end, range.end};
}

Document TokenStream::shifted(Document document, size_t part) const {
  document.number += first_documents_[part];
  document.begin += first_tokens_[part];
  document.end += first_tokens_[part];
  return document;
}

DocumentSubset::DocumentSubset(std::shared_ptr<const TokenSource> source,
                               const std::function<bool(int64_t)>& chosen)
    : source_(std::move(source)) {
  bool open = false;
  Crc32c checksum;
  const auto add = [&checksum](int64_t value) { checksum.update(std::as_bytes(std::span(&value, 1))); };
  add(source_->identity());
  for (int64_t number = 0; number < source_->document_count(); ++number) {
    const bool take = chosen(number);
    if (take) {
      const Document document = source_->document(number);
      if (!open) {
        parts_.push_back({token_count_, document_count_, document.begin, number});
        add(number);
      }
      token_count_ += document.end - document.begin;
      ++document_count_;
    } else if (open) {
      add(number);
    }
    open = take;
  }
  identity_ = checksum.value();
}

size_t DocumentSubset::part_of(int64_t position) const {
  ATHANOR_ASSERT(position >= 0 && position < token_count_, "token {} of {}", position, token_count_);
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), position,
                                      [](int64_t at, const Part& part) { return at < part.first_token; });
  return static_cast<size_t>(after - parts_.begin()) - 1;
}

int64_t DocumentSubset::end_of(size_t part) const {
  return part + 1 < parts_.size() ? parts_[part + 1].first_token : token_count_;
}

void DocumentSubset::read(int64_t first, std::span<int32_t> out) const {
  while (!out.empty()) {
    const size_t part = part_of(first);
    const auto count = std::min(out.size(), static_cast<size_t>(end_of(part) - first));
    source_->read(first - parts_[part].first_token + parts_[part].source_token, out.first(count));
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

Document DocumentSubset::shifted(Document document, const Part& part) const {
  const int64_t shift = part.first_token - part.source_token;
  return {document.number - part.source_document + part.first_document, document.begin + shift,
          document.end + shift};
}

Document DocumentSubset::document_at(int64_t position) const {
  const Part& part = parts_[part_of(position)];
  return shifted(source_->document_at(position - part.first_token + part.source_token), part);
}

Document DocumentSubset::document(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < document_count_, "document {} of {}", number, document_count_);
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), number,
                                      [](int64_t at, const Part& part) { return at < part.first_document; });
  const Part& part = *(after - 1);
  return shifted(source_->document(number - part.first_document + part.source_document), part);
}

TokenRange DocumentSubset::unlearned_in(TokenRange range) const {
  while (range.begin < range.end) {
    const size_t number = part_of(range.begin);
    const int64_t shift = parts_[number].first_token - parts_[number].source_token;
    const int64_t end = std::min(range.end, end_of(number));
    const TokenRange found = source_->unlearned_in({range.begin - shift, end - shift});
    if (found.size() > 0) return {found.begin + shift, found.end + shift};
    range.begin = end;
  }
  return {range.end, range.end};
}

DocumentSplit::Part DocumentSplit::part_of(int64_t document) const {
  const RandomKey key(seed, RandomPurpose::data_split, "documents");
  const auto words = random_block(key, static_cast<uint64_t>(document));
  const double place = uniform_double(words[0], words[1]);
  if (place < validation) return Part::validation;
  return place < validation + test ? Part::test : Part::train;
}

void validate(const DocumentSplit& split) {
  if (!(split.validation >= 0 && split.test >= 0 && split.validation + split.test < 1)) {
    throw_user_error(fmt::format("shares of {} for validation and {} for test", split.validation, split.test),
                     "give numbers from 0 whose sum is below 1");
  }
}

TrainValidationSplit split_tokens(int64_t token_count, double validation_fraction) {
  if (!(validation_fraction >= 0.0 && validation_fraction < 1.0)) {
    throw_user_error(fmt::format("the validation fraction is {}", validation_fraction),
                     "give a number from 0 up to, but not, 1");
  }
  const auto tail = static_cast<int64_t>(std::floor(validation_fraction * static_cast<double>(token_count)));
  const int64_t border = token_count - std::min(tail, token_count);
  return {.train = {0, border}, .validation = {border, token_count}};
}

}  // namespace athanor
