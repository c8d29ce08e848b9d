// Text to token ids and back: byte-pair encodings of the kinds that language models are published with.
//
// Called by data preparation, generation, evaluation and the commands. A Tokenizer never changes; any number
// of threads may use one. Open one with `open_tokenizer` (open_tokenizer.h).
//
// Text is bytes. Encoding loses none of them, also where they are no valid UTF-8, and takes every text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

struct EncodeOptions {
  // Whether text that spells a special token becomes it. Leave it off for text of unknown origin.
  bool special_tokens = false;
  // The text goes on from a piece that ended at `last_safe_cut`: no space is put in front of it.
  bool continuation = false;
};

struct DecodeOptions {
  bool special_tokens = true;  // shows special tokens as their text; false leaves them out
  bool continuation = false;   // the ids go on from others: the space in front of them stays
};

class AddedTokenMatcher;
class BytePairEncoder;

class Tokenizer {
 public:
  // Throws Error (user) for a definition that does not hold together: ids that are out of range or have two
  // meanings, a byte without a token.
  explicit Tokenizer(TokenizerDefinition definition);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const TokenizerDefinition& definition() const { return definition_; }
  int64_t vocabulary_size() const {
    return static_cast<int64_t>(token_begins_.size()) - 1;
  }  // largest id + 1
  std::optional<int32_t> beginning_of_text() const { return definition_.beginning_of_text; }
  std::optional<int32_t> end_of_text() const { return definition_.end_of_text; }
  // A checksum (CRC-32C) of everything that decides ids: equal for equal tokenizers, whatever file they came
  // from, and kept with data made by one.
  uint32_t identity() const { return identity_; }

  // The ids of a text. Neither beginning nor end of text is added. The first form appends to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids, const EncodeOptions& options = {}) const;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The longest beginning of `text` after which encoding may begin anew (with `continuation`) with the same
  // ids, whatever follows; 0 if there is none. So long texts are encoded in pieces.
  size_t last_safe_cut(std::string_view text, const EncodeOptions& options = {}) const;

  // The text of ids, joined before anything else is made of it: a character may be spread over several
  // tokens. An id that has no token is an error. To show text as ids come, see IncrementalDecoder.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  // The bytes that one id stands for. Error as above.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;  // false for ids without token too
  // True for tokens that stand for one byte of a character that has no token: how often they occur says how
  // well a vocabulary fits a text.
  bool is_byte_fallback(int32_t id) const;

  // Writes Hugging Face's tokenizer.json (docs/formats/tokenizer.md): other programs and `open_tokenizer`
  // read it and give the same ids.
  void save(FileEnvironment& files, const std::string& path) const;

 private:
  // Where a stretch of text between added tokens lies in the whole.
  struct Place {
    bool at_beginning = false;
    bool continuation = false;
  };
  void check_definition() const;
  void add_token_bytes();
  void add_matchers();
  uint32_t checksum() const;
  bool needs_prefix(std::string_view stretch, Place place) const;
  std::string marked(std::string_view stretch, Place place) const;  // prefix and marks of form characters
  // Text between added tokens of the first kind, and between those of the second too.
  void encode_stretch(std::string_view stretch, Place place, bool special, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view stretch, Place place, std::vector<int32_t>& ids) const;
  void encode_marked(std::string_view text, std::vector<int32_t>& ids) const;
  bool is_safe_place(std::string_view text, size_t position) const;

  TokenizerDefinition definition_;
  uint32_t identity_ = 0;
  std::string bytes_;                 // of all tokens
  std::vector<size_t> token_begins_;  // by id, into bytes_; one more than ids
  std::vector<uint8_t> flags_;        // by id; see tokenizer.cpp
  bool space_begins_word_ = false;    // form characters: no merge crosses the beginning of a run of spaces
  std::unique_ptr<const BytePairEncoder> encoder_;
  // Added tokens by `normalized`, and by whether special ones are among them.
  std::unique_ptr<const AddedTokenMatcher> matchers_[2][2];
};

// Turns ids into text as they come, in whole characters: bytes that may yet become a character are held back.
// Called by whoever shows text as it is made. Thread safety: one thread.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options = {});
  // What can be shown now. All results joined, with that of finish(), are what `decode` gives.
  std::string append(int32_t id);
  // The bytes held back, which are no whole character; begins anew.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeOptions options_;
  bool at_beginning_;
  std::string held_;
};

}  // namespace athanor
