// Encodes a text that comes in pieces, of any total length, with the ids of the whole.
//
// Called by whoever reads files and streams. Thread safety: one thread.
//
// Held back is what lies after the last safe cut: usually a word. A tokenizer that cannot cut a text (one
// that merges over all of it) makes it hold everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

class IncrementalEncoder {
 public:
  explicit IncrementalEncoder(std::shared_ptr<const Tokenizer> tokenizer, EncodeOptions options = {});
  // Appends the ids that are certain. Pieces may be cut anywhere, also within characters.
  void append(std::string_view piece, std::vector<int32_t>& ids);
  // Appends the rest: here the text ends. Begins anew.
  void finish(std::vector<int32_t>& ids);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  EncodeOptions options_, now_;
  std::string held_;
  size_t look_at_;  // looks for a cut when so many bytes are held: what was searched in vain is not searched
                    // again
};

}  // namespace athanor
