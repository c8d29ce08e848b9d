#include "athanor/tokenizer/incremental_encoder.h"

#include <algorithm>
#include <utility>

namespace athanor {
namespace {

constexpr size_t least_held = size_t{1} << 16;

}  // namespace

IncrementalEncoder::IncrementalEncoder(std::shared_ptr<const Tokenizer> tokenizer, EncodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options), now_(options), look_at_(least_held) {}

void IncrementalEncoder::append(std::string_view piece, std::vector<int32_t>& ids) {
  held_ += piece;
  if (held_.size() < look_at_) return;
  if (const size_t cut = tokenizer_->last_safe_cut(held_, options_); cut > 0) {
    tokenizer_->encode(std::string_view(held_).substr(0, cut), ids, now_);
    held_.erase(0, cut);
    now_.continuation = true;
  }
  look_at_ = std::max(least_held, 2 * held_.size());
}

void IncrementalEncoder::finish(std::vector<int32_t>& ids) {
  tokenizer_->encode(held_, ids, now_);
  held_.clear();
  now_ = options_;
  look_at_ = least_held;
}

}  // namespace athanor
