// Learns the merges of a byte-level BPE from counted words.
//
// Called by train.h. Source of the algorithm: Sennrich, Haddow and Birch 2016, "Neural machine translation of
// rare words with subword units", section 3.2. The rule, which decides every id:
//
// - Ids 0 to 255 are the single bytes in GPT-2's order (`alphabet_byte`).
// - A round takes the pair of neighbouring tokens that occurs most often within words, weighted with the
//   words' counts (in "aaa" the pair a-a occurs twice); of several the one with the smaller left id, then
//   with the smaller right id. Every occurrence is replaced, from left to right.
// - The new token gets the next id; if an earlier merge spells the same bytes, that token's id stands for
//   both, and the merge costs no id.
// - A pair that would spell a reserved text is passed over.
// - Rounds end when the vocabulary is full or no pair is left.
//
// Nothing else enters: the order of the words, their being given in one piece or several, the number of
// threads and the memory limit change no id.
//
// Thread safety: a call uses its own threads and shares nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Words with their counts, for reading several times.
class WordSource {
 public:
  using Visitor = std::function<void(std::string_view word, uint64_t count)>;
  virtual ~WordSource() = default;
  virtual int64_t words() const = 0;         // as many as for_each visits
  virtual int64_t bytes() const = 0;         // of these words together
  virtual int64_t memory_bytes() const = 0;  // what the source itself takes
  virtual void for_each(const Visitor& visit) const = 0;
};

struct MergeLearnerOptions {
  int64_t vocabulary = 0;             // ids to end with, at least 256
  std::vector<std::string> reserved;  // texts that no token may spell
  int64_t memory_bytes = 0;           // limit for what the learner allocates; 0: none
  int threads = 1;
  int64_t symbols_per_thread = 1 << 18;          // tokens to look at that are worth a thread
  std::function<void(int64_t tokens)> progress;  // called now and then with the ids there are; may throw
};

struct LearnedMerge {
  int32_t left = 0, right = 0, result = 0;  // ids
  int64_t count = 0;                        // occurrences when it was made
};

struct LearnedVocabulary {
  std::vector<std::string> tokens;  // bytes by id; fewer than asked for when no pair was left
  std::vector<LearnedMerge> merges;
};

// Destroys the words when it has read them. Throws Error (user) when they do not fit into the memory limit:
// before learning begins, with the bytes needed.
LearnedVocabulary learn_merges(std::unique_ptr<WordSource> words, const MergeLearnerOptions& options);

// The byte behind each of the ids 0 to 255: printable ones in rising order ('!' to '~', 0xa1 to 0xac, 0xae to
// 0xff), then the others in rising order.
std::array<uint8_t, 256> byte_alphabet();

}  // namespace athanor
