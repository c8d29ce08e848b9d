#include "athanor/tokenizer/merge_learner.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "athanor/base/error.h"
#include "athanor/tokenizer/index_selection.h"
#include "athanor/tokenizer/pair_index.h"
#include "athanor/tokenizer/training_threads.h"
#include "athanor/tokenizer/word_blocks.h"

namespace athanor {
namespace {

constexpr int64_t most_blocks = std::numeric_limits<uint32_t>::max() - 1;
// What a place of a merged pair may take in lists of its neighbours, which double as they grow.
constexpr int64_t bytes_per_place = 2 * 3 * sizeof(uint32_t);
constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 4;

// What the ids can come to: each new one takes a byte at least from the words.
int64_t most_ids(const WordSource& words, const MergeLearnerOptions& options) {
  return std::min(options.vocabulary, 256 + words.bytes());
}

template <typename Symbol>
int64_t fixed_bytes(const WordSource& words, const MergeLearnerOptions& options, int64_t block_symbols) {
  const int64_t symbols = words.bytes() + words.words();
  const int64_t blocks =
      block_symbols == 0 ? words.words() : std::min(words.words(), symbols / block_symbols + 4096);
  return symbols * static_cast<int64_t>(sizeof(Symbol)) + blocks * WordBlocks<Symbol>::bytes_per_block +
         options.threads * MergeNeighbours::bytes(most_ids(words, options));
}

// The least that the index of pairs needs for learning to get on.
template <typename Symbol>
int64_t least_index_bytes(const WordSource& words) {
  return (int64_t{1} << 17) + (words.bytes() + words.words()) * static_cast<int64_t>(sizeof(Symbol)) / 4;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

// How long a block of several words is at first; 0: a block is one word, if that leaves at least half of the
// memory to the index.
template <typename Symbol>
int64_t first_block_symbols(const WordSource& words, const MergeLearnerOptions& options) {
  const int64_t limit = options.memory_bytes > 0 ? options.memory_bytes : unlimited;
  if (words.words() <= most_blocks && fixed_bytes<Symbol>(words, options, 0) <= limit / 2) return 0;
  const int64_t besides = std::max(least_index_bytes<Symbol>(words), words.memory_bytes());
  int64_t needed = 0;
  for (const int64_t symbols : {64, 256, 1024}) {
    needed = fixed_bytes<Symbol>(words, options, symbols) + besides;
    if (needed <= limit && (words.bytes() + words.words()) / symbols < most_blocks) return symbols;
  }
  throw_user_error(
      fmt::format("{} different words ({}) need {} of memory for learning merges; the limit is {}",
                  words.words(), megabytes(words.bytes()), megabytes(needed), megabytes(limit)),
      "raise the memory limit, ask for a smaller vocabulary, or train on less text");
}

template <typename Symbol>
class MergeLearner {
 public:
  MergeLearner(std::unique_ptr<WordSource> words, const MergeLearnerOptions& options)
      : options_(options),
        most_ids_(most_ids(*words, options)),
        block_symbols_(first_block_symbols<Symbol>(*words, options)),
        words_(*words, id_of_byte(), block_symbols_),
        reserved_(options.reserved.begin(), options.reserved.end()) {
    words.reset();
    index_limit_ = unlimited;
    if (options.memory_bytes > 0) {
      index_limit_ =
          options.memory_bytes - words_.bytes() - options.threads * MergeNeighbours::bytes(most_ids_);
      if (index_limit_ < 1 << 16) refuse_for_memory();
    }
    for (int thread = 0; thread < options.threads; ++thread) {
      neighbours_.push_back(std::make_unique<MergeNeighbours>(most_ids_));
    }
    for (const uint8_t byte : byte_alphabet()) add_token(std::string(1, static_cast<char>(byte)));
    build_index();
  }

  LearnedVocabulary run() {
    while (static_cast<int64_t>(result_.tokens.size()) < options_.vocabulary) {
      if (options_.progress) options_.progress(static_cast<int64_t>(result_.tokens.size()));
      PairIndex::Pair* pair = next_pair();
      if (pair == nullptr) break;
      const auto left = static_cast<uint32_t>(pair->key >> 32);
      const auto right = static_cast<uint32_t>(pair->key);
      std::string text = result_.tokens[left] + result_.tokens[right];
      index_.pop();
      if (reserved_.contains(text)) continue;
      const uint32_t id = add_token(std::move(text));
      result_.merges.push_back(
          {static_cast<int32_t>(left), static_cast<int32_t>(right), static_cast<int32_t>(id), pair->count});
      merge(*pair, left, right, id);
    }
    return std::move(result_);
  }

 private:
  static std::array<uint8_t, 256> id_of_byte() {
    std::array<uint8_t, 256> ids{};
    const std::array<uint8_t, 256> alphabet = byte_alphabet();
    for (size_t id = 0; id < alphabet.size(); ++id) ids[alphabet[id]] = static_cast<uint8_t>(id);
    return ids;
  }

  int threads_for(int64_t symbols) const {
    return static_cast<int>(std::clamp<int64_t>(symbols / options_.symbols_per_thread, 1, options_.threads));
  }

  // The id of a token with these bytes: that of the one there is, or the next.
  uint32_t add_token(std::string text) {
    const auto [place, added] = id_of_text_.try_emplace(text, static_cast<uint32_t>(result_.tokens.size()));
    newest_is_new_ = added;
    if (added) result_.tokens.push_back(std::move(text));
    return place->second;
  }

  // --- rounds ------------------------------------------------------------------------------------------

  PairIndex::Pair* next_pair() {
    if (index_.pair_bytes() + index_.block_bytes() > index_limit_) index_is_complete_ = false;
    if (!index_is_complete_) build_index();
    PairIndex::Pair* pair = index_.top();
    if (bound_ && (pair == nullptr || PairIndex::rank_of(*pair) < *bound_)) {
      build_index();
      pair = index_.top();
    }
    return pair;
  }

  [[noreturn]] void refuse_for_memory() const {
    throw_user_error(fmt::format("the memory limit of {} does not hold the pairs of tokens after {} tokens",
                                 megabytes(options_.memory_bytes), result_.tokens.size()),
                     "raise the memory limit, or ask for a smaller vocabulary");
  }

  void merge(PairIndex::Pair& pair, uint32_t left, uint32_t right, uint32_t id) {
    std::vector<uint32_t> blocks = index_.take_blocks(pair);
    sort_blocks(blocks);
    // The lists of a merge at very many places could outgrow the memory: then all is counted anew.
    const int64_t places =
        std::min(pair.count, static_cast<int64_t>(blocks.size()) * (average_block_ / 2 + 1));
    const int64_t room = index_limit_ - index_.pair_bytes() - index_.block_bytes();
    const bool with_blocks = places < room / bytes_per_place;
    pair.count = 0;
    for (const auto& neighbours : neighbours_) neighbours->keep_blocks(with_blocks);
    replace_in(blocks, left, right, id);
    blocks = {};
    if (!with_blocks) {
      neighbours_.front()->clear();
      index_is_complete_ = false;
      return;
    }

    const MergeNeighbours& neighbours = *neighbours_.front();
    neighbours.for_each_before([&](uint32_t other, const MergeNeighbours::Side& side) {
      lose(pair_key(other, left), side.count);
      gain(pair_key(other, id), side);
    });
    neighbours.for_each_after([&](uint32_t other, const MergeNeighbours::Side& side) {
      lose(pair_key(right, other), side.count);
      gain(pair_key(id, other), side);
    });
    if (neighbours.between().count > 0) {
      lose(pair_key(right, left), neighbours.between().count);
      gain(pair_key(id, id), neighbours.between());
    }
    neighbours_.front()->clear();
    // Pairs of a token with itself lose occurrences to the merge beside them, which count as its own.
    if (PairIndex::Pair* merged = index_.find(pair_key(left, right))) merged->count = 0;
  }

  // Each block once and in order: two threads must not meet in one, and memory is read forwards.
  void sort_blocks(std::vector<uint32_t>& blocks) const {
    if (std::adjacent_find(blocks.begin(), blocks.end(), std::greater_equal<>()) == blocks.end()) return;
    if (static_cast<int64_t>(blocks.size()) < words_.blocks() / 256) {
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
      return;
    }
    std::vector<uint64_t> marks(static_cast<size_t>(words_.blocks() / 64 + 1));
    for (const uint32_t block : blocks) marks[block / 64] |= uint64_t{1} << block % 64;
    blocks.clear();
    for (size_t i = 0; i < marks.size(); ++i) {
      for (uint64_t left = marks[i]; left != 0; left &= left - 1) {
        blocks.push_back(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(left))));
      }
    }
  }

  void replace_in(const std::vector<uint32_t>& blocks, uint32_t left, uint32_t right, uint32_t id) {
    const auto count = static_cast<int64_t>(blocks.size());
    const int64_t symbols = count * std::max<int64_t>(average_block_, 1);
    const int threads = threads_for(symbols);
    const auto replace = [&](int64_t begin, int64_t end, MergeNeighbours& neighbours) {
      for (int64_t i = begin; i < end; ++i) {
        if (i + 16 < end) words_.prefetch(blocks[static_cast<size_t>(i + 16)]);
        if (i + 8 < end) words_.prefetch_symbols(blocks[static_cast<size_t>(i + 8)]);
        words_.replace(blocks[static_cast<size_t>(i)], left, right, id, neighbours);
      }
    };
    if (threads == 1) return replace(0, count, *neighbours_.front());
    const int64_t piece = std::max<int64_t>(1, count / (threads * 8));
    std::atomic<int64_t> next = 0;
    run_on_threads(threads, [&](int thread) {
      for (int64_t begin = next.fetch_add(piece); begin < count; begin = next.fetch_add(piece)) {
        replace(begin, std::min(begin + piece, count), *neighbours_[static_cast<size_t>(thread)]);
      }
    });
    for (int thread = 1; thread < threads; ++thread) {
      neighbours_.front()->add_all(*neighbours_[static_cast<size_t>(thread)]);
      neighbours_[static_cast<size_t>(thread)]->clear();
    }
  }

  void lose(PairKey key, int64_t count) {
    PairIndex::Pair* pair = index_.find(key);
    ATHANOR_ASSERT(pair != nullptr || bound_);
    if (pair != nullptr) pair->count -= count;
  }

  void gain(PairKey key, const MergeNeighbours::Side& side) {
    if (bound_ && index_.find(key) == nullptr) {
      // A pair of older tokens may have been left out with a part of its occurrences.
      if (!newest_is_new_) index_is_complete_ = false;
      if (PairRank{side.count, key} < *bound_) return;
    }
    PairIndex::Pair& pair = index_.find_or_add(key);
    pair.count += side.count;
    index_.add_blocks(pair, side.blocks);
    index_.push(pair);
  }

  // --- the index ---------------------------------------------------------------------------------------

  // Counts all pairs anew. Where they and their blocks do not fit into the memory, only the pairs of the
  // greatest ranks are taken in; the others follow when these are used up.
  void build_index() {
    bound_.reset();
    index_.clear();
    regroup();
    if (selects_ || !index_all()) {
      selects_ = true;
      index_.clear();
      index_selection();
    }
    index_.push_all();
    index_is_complete_ = true;
  }

  void regroup() {
    words_.regroup(block_symbols_);
    average_block_ = words_.symbols() / std::max<int64_t>(words_.blocks(), 1);
  }

  // All pairs in one pass; false if they do not fit.
  bool index_all() {
    const int64_t blocks = words_.blocks();
    const int threads = threads_for(words_.symbols());
    const int64_t limit = index_limit_ / 4 / threads;
    if (threads == 1) return index_range(0, blocks, limit, index_);
    std::vector<PairIndex> parts(static_cast<size_t>(threads));
    std::vector<char> fits(static_cast<size_t>(threads), 1);
    std::atomic<int> next = 0;
    run_on_threads(threads, [&](int) {
      for (int part = next++; part < threads; part = next++) {
        const auto i = static_cast<size_t>(part);
        fits[i] =
            index_range(blocks * part / threads, blocks * (part + 1) / threads, limit, parts[i]) ? 1 : 0;
      }
    });
    if (std::find(fits.begin(), fits.end(), 0) != fits.end()) return false;
    for (PairIndex& part : parts) {
      for (PairIndex::Pair& pair : part.pairs()) {
        PairIndex::Pair& sum = index_.find_or_add(pair.key);
        sum.count += pair.count;
        index_.add_blocks(sum, pair.blocks);
        pair.blocks = {};
      }
      part.clear();
    }
    return true;
  }

  // The limit holds for the pairs and for their blocks.
  bool index_range(int64_t begin, int64_t end, int64_t limit, PairIndex& index) const {
    for (int64_t block = begin; block < end; ++block) {
      const auto number = static_cast<uint32_t>(block);
      words_.for_each_pair(number, [&](uint32_t left, uint32_t right, int64_t count) {
        PairIndex::Pair& pair = index.find_or_add(pair_key(left, right));
        pair.count += count;
        if (pair.blocks.empty() || pair.blocks.back() != number) index.append_block(pair, number);
      });
      if (index.pair_bytes() > limit || index.block_bytes() > limit) return false;
    }
    return true;
  }

  // Half of the memory is left to what merges add.
  void index_selection() {
    const int64_t most_entries = index_limit_ * 3 / 8 / PairIndex::bytes_per_entry;
    // More pairs than merges to come are seldom needed, and cost time.
    const int64_t to_come = options_.vocabulary - static_cast<int64_t>(result_.tokens.size());
    const int64_t most_pairs =
        std::min(index_limit_ / 8 / PairIndex::bytes_per_pair, std::max<int64_t>(4096, 8 * to_come));
    if (most_pairs < static_cast<int64_t>(worthwhile_pairs)) refuse_for_memory();
    for (;;) {
      const IndexSelector<Symbol> selector(words_, threads_for(words_.symbols()), index_limit_ / 2);
      const IndexSelection selection = selector.select(most_pairs, most_entries);
      const size_t pairs = selection.pairs.size();
      const bool grows = block_symbols_ < (1 << 20) && block_symbols_ < words_.symbols();
      if (selection.bound && pairs < worthwhile_pairs && grows) {
        block_symbols_ = std::max<int64_t>(64, block_symbols_ * 4);
        regroup();
        continue;
      }
      if (selection.bound && pairs == 0) refuse_for_memory();
      bound_ = selection.bound;
      selector.fill(index_, selection);
      return;
    }
  }

  // Fewer are not worth two passes over all words.
  static constexpr size_t worthwhile_pairs = 8;

  const MergeLearnerOptions& options_;
  const int64_t most_ids_;
  int64_t block_symbols_;
  WordBlocks<Symbol> words_;
  const std::unordered_set<std::string> reserved_;
  LearnedVocabulary result_;
  std::unordered_map<std::string, uint32_t> id_of_text_;
  std::vector<std::unique_ptr<MergeNeighbours>> neighbours_;  // one for each thread

  PairIndex index_;
  int64_t index_limit_ = 0;         // bytes
  int64_t average_block_ = 0;       // symbols
  std::optional<PairRank> bound_;   // pairs of lesser ranks may be left out of the index
  bool selects_ = false;            // the memory does not suffice for all pairs
  bool index_is_complete_ = false;  // false: counts may be missing, build it anew
  bool newest_is_new_ = false;      // the token added last got an id of its own
};

}  // namespace

std::array<uint8_t, 256> byte_alphabet() {
  std::array<uint8_t, 256> alphabet{};
  const auto printable = [](int byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  };
  size_t id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (printable(byte)) alphabet[id++] = static_cast<uint8_t>(byte);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!printable(byte)) alphabet[id++] = static_cast<uint8_t>(byte);
  }
  return alphabet;
}

LearnedVocabulary learn_merges(std::unique_ptr<WordSource> words, const MergeLearnerOptions& options) {
  ATHANOR_ASSERT(options.threads >= 1);
  if (options.vocabulary < 256 || options.vocabulary > (int64_t{1} << 24)) {
    throw_user_error(fmt::format("a vocabulary of {} tokens cannot be learned", options.vocabulary),
                     "it holds the 256 bytes at least, and 2^24 tokens at most");
  }
  if (options.vocabulary <= std::numeric_limits<uint16_t>::max()) {
    return MergeLearner<uint16_t>(std::move(words), options).run();
  }
  return MergeLearner<uint32_t>(std::move(words), options).run();
}

}  // namespace athanor
