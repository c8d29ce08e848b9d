#include "athanor/tokenizer/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <set>

#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/tokenizer/added_tokens.h"
#include "athanor/tokenizer/merge_learner.h"
#include "athanor/tokenizer/unicode.h"
#include "athanor/tokenizer/word_counts.h"

namespace athanor {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

// Cuts documents into pieces of a size, where no word is cut. A stretch of that size without such a place is
// cut at its end, between characters.
class PieceCutter {
 public:
  PieceCutter(TextSource& source, SplitPattern pattern) : source_(source), pattern_(pattern) {}

  bool next(TextPiece& piece) {
    piece.text.clear();
    piece.ends.clear();
    // Small documents share a piece.
    while (piece.text.size() < piece_bytes && !(at_end_ && begin_ == pending_.size())) {
      fill();
      const std::string_view text = std::string_view(pending_).substr(begin_);
      const size_t size = whole_ && text.size() <= piece_bytes ? text.size() : cut(text);
      piece.text += text.substr(0, size);
      piece.ends.push_back(piece.text.size());
      begin_ += size;
      if (begin_ == pending_.size() && whole_) begin_document();
    }
    return !piece.text.empty();
  }

  int64_t bytes() const { return bytes_; }

 private:
  // At least a piece, or the rest of the document.
  void fill() {
    while (!whole_ && pending_.size() - begin_ <= piece_bytes) {
      const TextSource::Next next = source_.next(part_);
      bytes_ += static_cast<int64_t>(part_.size());
      if (begin_ > 0) pending_.erase(0, begin_);
      begin_ = 0;
      pending_ += part_;
      whole_ = next != TextSource::Next::part;
      at_end_ = next == TextSource::Next::end;
    }
  }

  void begin_document() {
    pending_.clear();
    begin_ = 0;
    whole_ = at_end_;
  }

  size_t cut(std::string_view text) const {
    const std::string_view piece = text.substr(0, piece_bytes);
    const size_t safe = last_safe_cut(pattern_, piece);
    if (safe > 0) return safe;
    for (size_t end = piece.size(); end + 4 > piece.size(); --end) {
      if ((static_cast<uint8_t>(text[end]) & 0xc0) != 0x80) return end;
    }
    return piece.size();
  }

  TextSource& source_;
  const SplitPattern pattern_;
  std::string pending_, part_;
  size_t begin_ = 0;     // of pending_: what lies before it has been handed out
  bool whole_ = false;   // pending_ holds the rest of a document
  bool at_end_ = false;  // of the source
  int64_t bytes_ = 0;
};

void check(const TokenizerTrainingOptions& options) {
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    constexpr const char* hint =
        "give it a text of several characters that no document has, such as <|endoftext|>";
    if (token.size() < 2) throw_user_error(fmt::format("the special token '{}' is too short", token), hint);
    if (token.size() > AddedTokenMatcher::longest_content) {
      throw_user_error(fmt::format("the special token '{}...' has {} bytes; {} are the most",
                                   token.substr(0, 40), token.size(), AddedTokenMatcher::longest_content),
                       hint);
    }
    for (size_t at = 0; at < token.size();) {
      const Character character = character_at(token, at);
      if (!character.valid) throw_user_error(fmt::format("the special token '{}' is no UTF-8", token), hint);
      at += static_cast<size_t>(character.length);
    }
    if (!seen.insert(token).second) {
      throw_user_error(fmt::format("the special token '{}' is given twice", token), "give each once");
    }
  }
  const auto least = static_cast<int64_t>(256 + options.special_tokens.size());
  if (options.vocabulary < least || options.vocabulary > int64_t{1} << 24) {
    throw_user_error(
        fmt::format("a vocabulary of {} tokens cannot be trained", options.vocabulary),
        fmt::format("the 256 bytes and {} special token{} are {}; 16777216 are the most",
                    options.special_tokens.size(), plural(std::ssize(options.special_tokens)), least));
  }
}

}  // namespace

TrainedTokenizer train_tokenizer(TextSource& text, const TokenizerTrainingOptions& options) {
  check(options);
  TrainedTokenizer result;
  const auto report = [&](int64_t tokens) {
    if (options.progress) options.progress({result.text_bytes, tokens});
  };

  PieceCutter cutter(text, options.pattern);
  const NextPiece next = [&](TextPiece& piece) {
    const bool more = cutter.next(piece);
    result.text_bytes = cutter.bytes();
    report(0);
    return more;
  };
  WordCountOptions counting;
  counting.pattern = options.pattern;
  counting.threads = options.threads;
  counting.memory_bytes = options.memory_bytes;
  counting.files = options.files;
  counting.scratch = options.scratch;
  std::unique_ptr<WordSource> words = count_words(next, counting);
  result.words = words->words();
  result.word_bytes = words->bytes();

  MergeLearnerOptions learning;
  learning.vocabulary = options.vocabulary - static_cast<int64_t>(options.special_tokens.size());
  learning.reserved = options.special_tokens;
  learning.memory_bytes = options.memory_bytes;
  learning.threads = options.threads;
  learning.progress = report;
  LearnedVocabulary learned = learn_merges(std::move(words), learning);

  TokenizerDefinition& definition = result.definition;
  definition.pattern = options.pattern;
  definition.tokens = std::move(learned.tokens);
  for (const LearnedMerge& merge : learned.merges) {
    definition.merges.push_back({merge.left, merge.right, merge.result});
  }
  for (const std::string& content : options.special_tokens) {
    AddedToken token;
    token.id = static_cast<int32_t>(definition.tokens.size() + definition.added_tokens.size());
    token.content = content;
    definition.added_tokens.push_back(std::move(token));
  }
  if (!definition.added_tokens.empty()) definition.end_of_text = definition.added_tokens.front().id;
  return result;
}

}  // namespace athanor
