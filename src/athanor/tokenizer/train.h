// Trains a byte-level BPE tokenizer on text of any length (docs/tokenizer_training.md).
//
// Called by the command `tokenizer train` and by whoever trains a tokenizer for its own text. The result
// depends on the documents alone: not on their order, on how they arrive, on the number of threads or on the
// memory limit. Thread safety: a call uses its own threads; a TextSource is called by one thread at a time,
// not always the same.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/tokenizer/splitter.h"
#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

// Documents, in pieces as they are read. Words do not reach from one document into the next.
class TextSource {
 public:
  enum class Next : uint8_t {
    part,      // `text` holds the next bytes of a document, which goes on
    document,  // `text` holds the last bytes of a document, or all of it
    end,       // there is nothing more; `text` is empty
  };
  virtual ~TextSource() = default;
  virtual Next next(std::string& text) = 0;  // replaces `text`, by some mebibytes at most if it is a part
};

struct TokenizerTrainingProgress {
  int64_t text_bytes = 0;  // read so far
  int64_t tokens = 0;      // learned so far; 0 while text is read
};

struct TokenizerTrainingOptions {
  int64_t vocabulary = 0;                   // all ids: 256 bytes, merged tokens, special tokens
  std::vector<std::string> special_tokens;  // get the last ids; the first ends a text
  SplitPattern pattern = SplitPattern::gpt2;
  int threads = 1;
  int64_t memory_bytes = 0;          // limit for what training allocates; 0: none
  FileEnvironment* files = nullptr;  // with a limit: for words that do not fit
  std::string scratch;               // beginning of the names of these files
  // Called often, by one thread at a time. What it throws ends the training.
  std::function<void(const TokenizerTrainingProgress&)> progress;
};

struct TrainedTokenizer {
  TokenizerDefinition definition;  // has fewer ids than asked for when the text has no more pairs
  int64_t text_bytes = 0;
  int64_t words = 0;       // different ones
  int64_t word_bytes = 0;  // of these
};

// Throws Error (user) for options that do not go together, and when the memory limit does not suffice: then
// before merges are learned, with the numbers.
TrainedTokenizer train_tokenizer(TextSource& text, const TokenizerTrainingOptions& options);

}  // namespace athanor
