#include "athanor/tokenizer/byte_pair_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <new>
#include <queue>
#include <span>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/tokenizer/unicode.h"
#include "athanor/tokenizer/word_memory.h"

namespace athanor {
namespace {

// Up to here looking at all pairs for each merge is faster than keeping them in a heap.
constexpr size_t few_units = 64;

// The end of the word of a text with marked spaces that begins at `begin`.
size_t marked_word_end(std::string_view text, size_t begin, bool each_space) {
  size_t from = begin;
  const auto is_mark = [&](size_t position) {
    return text.substr(position, space_mark.size()) == space_mark;
  };
  if (each_space) {
    from += is_mark(from) ? space_mark.size() : 1;
  } else {
    while (is_mark(from)) from += space_mark.size();
  }
  return std::min(text.size(), text.find(space_mark, from));
}

}  // namespace

MergeTable::MergeTable(const std::vector<TokenMerge>& merges) {
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  entries_.resize(slots);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = key(merges[rank].left, merges[rank].right);
    size_t slot = slot_of(pair);
    while (entries_[slot].rank != no_rank && entries_[slot].pair != pair) slot = (slot + 1) & mask_;
    entries_[slot] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

struct BytePairEncoder::Memory {
  WordMemory<2, 3> short_words{14};
  WordMemory<4, 7> long_words{12};
  std::vector<int32_t> units;  // of the word at work; after merging its ids

  // merge_many: a list of units by place, and the pairs that may be merged, the lowest rank and place first.
  struct Link {
    uint32_t before, after;
    uint32_t rank;
    int32_t result;
  };
  std::vector<Link> links;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;
};

class BytePairEncoder::MemoryLease {
 public:
  explicit MemoryLease(const BytePairEncoder& encoder) : encoder_(encoder), memory_(encoder.take_memory()) {}
  ~MemoryLease() { encoder_.give_back(std::move(memory_)); }
  MemoryLease(const MemoryLease&) = delete;
  MemoryLease& operator=(const MemoryLease&) = delete;
  Memory& operator*() const { return *memory_; }

 private:
  const BytePairEncoder& encoder_;
  std::unique_ptr<Memory> memory_;
};

BytePairEncoder::BytePairEncoder(const TokenizerDefinition& definition)
    : form_(definition.form),
      pattern_(definition.pattern),
      merges_nothing_(definition.merges.empty() && !definition.whole_words_first),
      merges_(definition.merges) {
  byte_ids_.fill(-1);
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.empty()) continue;
    if (definition.whole_words_first) whole_words_.emplace(token, static_cast<int32_t>(id));
    if (form_ == TextForm::bytes) {
      if (token.size() == 1) byte_ids_[static_cast<uint8_t>(token[0])] = static_cast<int32_t>(id);
      continue;
    }
    const Character first = character_at(token, 0);
    if (first.valid && first.length == token.size())
      character_ids_.emplace(first.code, static_cast<int32_t>(id));
    if (token.size() == 6 && token.starts_with("<0x") && token[5] == '>') {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        if (token == fmt::format("<0x{:02X}>", byte)) byte_ids_[byte] = static_cast<int32_t>(id);
      }
    }
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (byte_ids_[byte] >= 0) continue;
    throw_user_error(
        fmt::format("the tokenizer has no token for the byte 0x{:02X}", byte),
        "it cannot represent every text; train it with an alphabet of all bytes, or with byte fallback");
  }
}

BytePairEncoder::~BytePairEncoder() = default;

std::unique_ptr<BytePairEncoder::Memory> BytePairEncoder::take_memory() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Memory> memory = std::move(idle_.back());
      idle_.pop_back();
      return memory;
    }
  }
  return std::make_unique<Memory>();
}

void BytePairEncoder::give_back(std::unique_ptr<Memory> memory) const {
  // What one extraordinary word needed is not kept.
  constexpr size_t kept_units = size_t{1} << 16;
  if (memory->units.capacity() > kept_units) *memory = Memory{};
  const std::lock_guard lock(mutex_);
  try {
    idle_.push_back(std::move(memory));
  } catch (const std::bad_alloc&) {  // called by a destructor: what cannot be kept is freed
  }
}

void BytePairEncoder::append_units(std::string_view word, Memory& memory) const {
  memory.units.clear();
  if (form_ == TextForm::bytes) {
    for (const char byte : word) memory.units.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  for (size_t i = 0; i < word.size();) {
    const Character character = character_at(word, i);
    const auto known = character.valid ? character_ids_.find(character.code) : character_ids_.end();
    if (known != character_ids_.end()) {
      memory.units.push_back(known->second);
    } else {
      for (size_t k = 0; k < character.length; ++k) {
        memory.units.push_back(byte_ids_[static_cast<uint8_t>(word[i + k])]);
      }
    }
    i += character.length;
  }
}

void BytePairEncoder::merge_few(Memory& memory) const {
  std::array<uint32_t, few_units> ranks;
  std::array<int32_t, few_units> results;
  int32_t* const units = memory.units.data();
  size_t count = memory.units.size();
  const auto look = [&](size_t i) {
    const MergeTable::Entry& merge = merges_.find(units[i], units[i + 1]);
    ranks[i] = merge.rank;
    results[i] = merge.result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const size_t pairs = count - 1;
    uint32_t lowest = ranks[0];
    for (size_t i = 1; i < pairs; ++i) lowest = std::min(lowest, ranks[i]);
    if (lowest == MergeTable::no_rank) break;
    size_t best = 0;
    while (ranks[best] != lowest) ++best;
    units[best] = results[best];
    std::copy(units + best + 2, units + count, units + best + 1);
    std::copy(ranks.data() + best + 1, ranks.data() + pairs, ranks.data() + best);
    std::copy(results.data() + best + 1, results.data() + pairs, results.data() + best);
    --count;
    if (best + 1 < count) look(best);
    if (best > 0) look(best - 1);
  }
  memory.units.resize(count);
}

// Each merge costs the logarithm of the word's length, so that no word takes more than moments.
void BytePairEncoder::merge_many(Memory& memory) const {
  constexpr uint32_t none = 0xffffffffU;
  std::vector<int32_t>& units = memory.units;
  std::vector<Memory::Link>& links = memory.links;
  const auto count = static_cast<uint32_t>(units.size());
  links.resize(count);
  memory.queue = {};  // not empty if memory ran out in the middle of a word
  const auto look = [&](uint32_t place) {
    Memory::Link& link = links[place];
    const MergeTable::Entry merge =
        link.after == none ? MergeTable::Entry{} : merges_.find(units[place], units[link.after]);
    link.rank = merge.rank;
    link.result = merge.result;
    if (merge.rank != MergeTable::no_rank) memory.queue.push(uint64_t{merge.rank} << 32 | place);
  };
  for (uint32_t i = 0; i < count; ++i) {
    links[i].before = i == 0 ? none : i - 1;
    links[i].after = i + 1 == count ? none : i + 1;
    look(i);
  }
  while (!memory.queue.empty()) {
    const uint64_t top = memory.queue.top();
    memory.queue.pop();
    const auto place = static_cast<uint32_t>(top);
    Memory::Link& link = links[place];
    if (link.rank != top >> 32) continue;  // what it was about is gone
    const uint32_t gone = link.after;
    units[place] = link.result;
    link.after = links[gone].after;
    if (link.after != none) links[link.after].before = place;
    links[gone].rank = MergeTable::no_rank;
    look(place);
    if (link.before != none) look(link.before);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i != none; i = links[i].after) units[kept++] = units[i];
  units.resize(kept);
}

void BytePairEncoder::encode_word(std::string_view word, Memory& memory) const {
  if (!whole_words_.empty()) {
    const auto whole = whole_words_.find(std::string(word));
    if (whole != whole_words_.end()) return memory.units.assign(1, whole->second);
  }
  append_units(word, memory);
  if (memory.units.size() <= few_units) return merge_few(memory);
  if (memory.units.size() >= 0xffffffffU) {
    throw_user_error(fmt::format("a text of {} bytes has no place to cut it", word.size()),
                     "this tokenizer merges over the whole text: encode it in parts");
  }
  merge_many(memory);
}

void BytePairEncoder::append(std::string_view text, Words words, std::vector<int32_t>& ids) const {
  const MemoryLease lease(*this);
  Memory& memory = *lease;
  if (merges_nothing_ && form_ == TextForm::bytes) {
    ids.reserve(ids.size() + text.size());
    for (const char byte : text) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    switch (words) {
      case Words::pattern:
        end = word_end(pattern_, text, begin);
        break;
      case Words::space:
      case Words::space_run:
        end = marked_word_end(text, begin, words == Words::space);
        break;
      case Words::whole:
        end = text.size();
        break;
    }
    const std::string_view word = text.substr(begin, end - begin);
    const auto use = [&](auto& known_words) {
      const auto key = key_of<sizeof(typename std::remove_reference_t<decltype(known_words)>::Key) / 8>(
          word, text.size() - begin);
      if (const auto* known = known_words.find(key)) {
        ids.insert(ids.end(), known->ids.begin(), known->ids.begin() + known->count);
        return;
      }
      encode_word(word, memory);
      known_words.remember(key, memory.units);
      ids.insert(ids.end(), memory.units.begin(), memory.units.end());
    };
    if (word.size() <= decltype(memory.short_words)::longest_word) {
      use(memory.short_words);
    } else if (word.size() <= decltype(memory.long_words)::longest_word) {
      use(memory.long_words);
    } else {
      encode_word(word, memory);
      ids.insert(ids.end(), memory.units.begin(), memory.units.end());
    }
  }
}

}  // namespace athanor
