// The inner part of a tokenizer: words of text to ids by merging, as fast as it goes.
//
// Called by Tokenizer. Thread safety: any number of threads may encode at once.
//
// The ids are a pure function of text and definition. Words that were met before are remembered, up to a
// fixed amount of memory for each thread at work; it changes nothing but the time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

// Merges by the pair of ids that they join: open addressing, at most half full.
class MergeTable {
 public:
  static constexpr uint32_t no_rank = 0xffffffffU;
  struct Entry {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = no_rank;
    int32_t result = -1;
  };

  explicit MergeTable(const std::vector<TokenMerge>& merges);  // of a pair listed twice the last one counts

  // The merge of a pair; its rank is `no_rank` if there is none.
  const Entry& find(int32_t left, int32_t right) const {
    const uint64_t pair = key(left, right);
    size_t slot = slot_of(pair);
    while (entries_[slot].pair != pair && entries_[slot].rank != no_rank) slot = (slot + 1) & mask_;
    return entries_[slot].pair == pair ? entries_[slot] : none_;
  }

 private:
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const { return static_cast<size_t>(pair * 0x9e3779b97f4a7c15U >> shift_); }

  std::vector<Entry> entries_;
  size_t mask_ = 0;
  int shift_ = 0;
  Entry none_;
};

class BytePairEncoder {
 public:
  // Checks the parts of the definition that merging needs.
  explicit BytePairEncoder(const TokenizerDefinition& definition);
  ~BytePairEncoder();

  // The words of the splitting pattern of form bytes; of form characters, a text with marked spaces whose
  // words begin at every space mark, at every run of them, or that is one word.
  enum class Words : uint8_t { pattern, space, space_run, whole };
  void append(std::string_view text, Words words, std::vector<int32_t>& ids) const;

  // The tokens of the 256 bytes.
  const std::array<int32_t, 256>& byte_ids() const { return byte_ids_; }

 private:
  struct Memory;  // of a thread at work

  class MemoryLease;
  void encode_word(std::string_view word, Memory& memory) const;
  void append_units(std::string_view word, Memory& memory) const;
  void merge_few(Memory& memory) const;
  void merge_many(Memory& memory) const;
  std::unique_ptr<Memory> take_memory() const;
  void give_back(std::unique_ptr<Memory> memory) const;

  TextForm form_;
  SplitPattern pattern_;
  bool merges_nothing_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> whole_words_;  // if they come first
  std::unordered_map<uint32_t, int32_t> character_ids_;   // form characters
  MergeTable merges_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Memory>>
      idle_;  // at most one for each thread that ever encoded at once
};

}  // namespace athanor
