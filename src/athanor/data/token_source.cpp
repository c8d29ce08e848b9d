#include "athanor/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

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
  Document document = parts_[part]->document_at(position - first_tokens_[part]);
  document.number += first_documents_[part];
  document.begin += first_tokens_[part];
  document.end += first_tokens_[part];
  return document;
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
