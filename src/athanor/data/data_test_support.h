// Token sources without files, for the tests of this room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "athanor/data/token_source.h"

namespace athanor {

// Documents of given lengths; token t has id first_id + t, and is unlearned where `unlearned` says so.
class NumberedTokens final : public TokenSource {
 public:
  explicit NumberedTokens(const std::vector<int64_t>& lengths, int32_t first_id = 0,
                          std::vector<TokenRange> unlearned = {}, uint32_t identity = 1)
      : first_id_(first_id), unlearned_(std::move(unlearned)), identity_(identity) {
    for (const int64_t length : lengths) starts_.push_back(starts_.back() + length);
  }
  int64_t token_count() const override { return starts_.back(); }
  int64_t document_count() const override { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t vocabulary_size() const override { return first_id_ + token_count() + 1; }
  uint32_t identity() const override { return identity_; }
  void read(int64_t first, std::span<int32_t> out) const override {
    for (auto& id : out) id = first_id_ + static_cast<int32_t>(first++);
  }
  Document document_at(int64_t position) const override {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
    return document(after - starts_.begin() - 1);
  }
  Document document(int64_t number) const override {
    const auto at = static_cast<size_t>(number);
    return {number, starts_.at(at), starts_.at(at + 1)};
  }
  TokenRange unlearned_in(TokenRange range) const override {
    for (const TokenRange& stretch : unlearned_) {
      const TokenRange found{std::max(range.begin, stretch.begin), std::min(range.end, stretch.end)};
      if (found.size() > 0) return found;
    }
    return {range.end, range.end};
  }

 private:
  std::vector<int64_t> starts_{0};
  int32_t first_id_;
  std::vector<TokenRange> unlearned_;
  uint32_t identity_;
};

}  // namespace athanor
