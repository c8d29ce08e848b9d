#include <utility>

#include "athanor/tokenizer/tokenizer.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {

IncrementalDecoder::IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options), at_beginning_(!options.continuation) {}

std::string IncrementalDecoder::append(int32_t id) {
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (!options_.special_tokens && tokenizer_->is_special(id)) return {};
  if (at_beginning_ && tokenizer_->definition().strip_first_space && bytes.starts_with(' '))
    bytes.remove_prefix(1);
  at_beginning_ = false;
  held_ += bytes;
  const size_t complete = held_.size() - incomplete_tail(held_);
  std::string text = held_.substr(0, complete);
  held_.erase(0, complete);
  return text;
}

std::string IncrementalDecoder::finish() {
  at_beginning_ = !options_.continuation;
  return std::exchange(held_, {});
}

}  // namespace athanor
