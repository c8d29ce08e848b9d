#include "athanor/tokenizer/merge_learner.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "athanor/base/error.h"
#include "athanor/tokenizer/pair_index.h"
#include "athanor/tokenizer/training_threads.h"
#include "athanor/tokenizer/word_blocks.h"

namespace athanor {
namespace {

constexpr int64_t most_blocks = std::numeric_limits<uint32_t>::max() - 1;
constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 4;

template <typename Symbol>
int64_t fixed_bytes(const WordSource& words, const MergeLearnerOptions& options, int64_t block_symbols) {
  const int64_t symbols = words.bytes() + words.words();
  const int64_t blocks =
      block_symbols == 0 ? words.words() : std::min(words.words(), symbols / block_symbols + 4096);
  return symbols * static_cast<int64_t>(sizeof(Symbol)) + blocks * WordBlocks<Symbol>::bytes_per_block +
         options.threads * MergeNeighbours::bytes(options.vocabulary);
}

// The least that the index of pairs needs for learning to get on.
template <typename Symbol>
int64_t least_index_bytes(const WordSource& words) {
  return (int64_t{1} << 17) + (words.bytes() + words.words()) * static_cast<int64_t>(sizeof(Symbol)) / 4;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

// How many words go into a block at first: one, if that leaves at least half of the memory to the index.
template <typename Symbol>
int64_t first_block_symbols(const WordSource& words, const MergeLearnerOptions& options) {
  const int64_t limit = options.memory_bytes > 0 ? options.memory_bytes : unlimited;
  if (words.words() <= most_blocks && fixed_bytes<Symbol>(words, options, 0) <= limit / 2) {
    return 0;
  }
  constexpr int64_t many = 1024;
  const int64_t needed = fixed_bytes<Symbol>(words, options, many) +
                         std::max(least_index_bytes<Symbol>(words), words.memory_bytes());
  if (needed > limit) {
    throw_user_error(
        fmt::format("{} different words ({}) need {} of memory for learning merges; the limit is {}",
                    words.words(), megabytes(words.bytes()), megabytes(needed), megabytes(limit)),
        "raise the memory limit, or train on less text");
  }
  return many;
}

template <typename Symbol>
class MergeLearner {
 public:
  MergeLearner(std::unique_ptr<WordSource> words, const MergeLearnerOptions& options)
      : options_(options),
        block_symbols_(first_block_symbols<Symbol>(*words, options)),
        words_(*words, id_of_byte(), block_symbols_),
        reserved_(options.reserved.begin(), options.reserved.end()) {
    words.reset();
    index_limit_ = unlimited;
    if (options.memory_bytes > 0) {
      index_limit_ = options.memory_bytes - words_.bytes() -
                     options.threads * MergeNeighbours::bytes(options.vocabulary);
      if (index_limit_ < 1 << 16) refuse_for_memory();
    }
    for (int thread = 0; thread < options.threads; ++thread) {
      neighbours_.push_back(std::make_unique<MergeNeighbours>(options.vocabulary));
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
    pair.count = 0;
    // Each block once and in order: two threads must not meet in one, and memory is read forwards.
    if (std::adjacent_find(blocks.begin(), blocks.end(), std::greater_equal<>()) != blocks.end()) {
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    }
    replace_in(blocks, left, right, id);
    blocks = {};

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

  // Counts all pairs anew. Where they do not fit into half of the index's memory, blocks become larger, and
  // only the pairs of the greatest ranks are taken in; the others follow when these are used up.
  void build_index() {
    bound_.reset();
    index_.clear();
    regroup();
    int64_t most_pairs = index_limit_ / 8 / PairIndex::bytes_per_pair;
    bool selected = false;
    Fit fit = count_pairs();
    while (fit != Fit::yes) {
      if (fit == Fit::too_many_blocks && block_symbols_ < (1 << 20) && block_symbols_ < words_.symbols()) {
        block_symbols_ = std::max<int64_t>(64, block_symbols_ * 4);
        regroup();
      } else {
        if (selected) most_pairs /= 2;
        if (most_pairs < 16) refuse_for_memory();
        select_pairs(most_pairs);
        selected = true;
      }
      fit = selected ? find_blocks() : count_pairs();
    }
    index_.push_all();
    index_is_complete_ = true;
  }

  void regroup() {
    words_.regroup(block_symbols_);
    average_block_ = words_.symbols() / std::max<int64_t>(words_.blocks(), 1);
  }

  enum class Fit : uint8_t { yes, too_many_pairs, too_many_blocks };

  Fit count_pairs() {
    index_.clear();
    const int64_t blocks = words_.blocks();
    const int threads = threads_for(words_.symbols());
    const int64_t limit = index_limit_ / 4 / threads;
    if (threads == 1) return count_range(0, blocks, limit, index_);
    std::vector<PairIndex> parts(static_cast<size_t>(threads));
    std::vector<Fit> fits(static_cast<size_t>(threads), Fit::yes);
    std::atomic<int> next = 0;
    run_on_threads(threads, [&](int) {
      for (int part = next++; part < threads; part = next++) {
        const auto i = static_cast<size_t>(part);
        fits[i] = count_range(blocks * part / threads, blocks * (part + 1) / threads, limit, parts[i]);
      }
    });
    for (const Fit fit : fits) {
      if (fit != Fit::yes) return fit;
    }
    for (PairIndex& part : parts) {
      for (PairIndex::Pair& pair : part.pairs()) {
        PairIndex::Pair& sum = index_.find_or_add(pair.key);
        sum.count += pair.count;
        index_.add_blocks(sum, pair.blocks);
        pair.blocks = {};
      }
      part.clear();
    }
    return Fit::yes;
  }

  // The limit holds for the pairs and for their blocks.
  Fit count_range(int64_t begin, int64_t end, int64_t limit, PairIndex& index) const {
    for (int64_t block = begin; block < end; ++block) {
      const auto number = static_cast<uint32_t>(block);
      words_.for_each_pair(number, [&](uint32_t left, uint32_t right, int64_t count) {
        PairIndex::Pair& pair = index.find_or_add(pair_key(left, right));
        pair.count += count;
        if (pair.blocks.empty() || pair.blocks.back() != number) index.append_block(pair, number);
      });
      if (index.pair_bytes() > limit) return Fit::too_many_pairs;
      if (index.block_bytes() > limit) return Fit::too_many_blocks;
    }
    return Fit::yes;
  }

  // Leaves in the index the pairs of the greatest ranks, as many as `most`, with their counts, without
  // blocks.
  void select_pairs(int64_t most) {
    index_.clear();
    std::vector<PairRank> best;
    std::mutex mutex;
    // Pairs are counted in parts, by hash, one part at a time on each thread.
    const int threads = threads_for(words_.symbols());
    const int64_t limit = index_limit_ / 4 / threads;
    std::atomic<bool> fits = false;
    for (int64_t parts = threads; !fits; parts *= 2) {
      best.clear();
      bound_.reset();
      fits = true;
      std::atomic<int64_t> next = 0;
      run_on_threads(threads, [&](int) {
        for (int64_t part = next++; part < parts && fits; part = next++) {
          PairIndex counted;
          if (!count_part(part, parts, limit, counted)) {
            if (parts > int64_t{1} << 24) refuse_for_memory();
            fits = false;
            return;
          }
          const std::lock_guard lock(mutex);
          for (const PairIndex::Pair& pair : counted.pairs())
            add_to_best(PairIndex::rank_of(pair), most, best);
        }
      });
    }
    keep_best(most, best);
    for (const PairRank& rank : best) index_.find_or_add(rank.key).count = rank.count;
  }

  bool count_part(int64_t part, int64_t parts, int64_t limit, PairIndex& counted) const {
    for (int64_t block = 0; block < words_.blocks(); ++block) {
      words_.for_each_pair(static_cast<uint32_t>(block), [&](uint32_t left, uint32_t right, int64_t count) {
        const PairKey key = pair_key(left, right);
        if (static_cast<int64_t>((hash_pair(key) >> 32) % static_cast<uint64_t>(parts)) != part) return;
        counted.find_or_add(key).count += count;
      });
      if (counted.pair_bytes() > limit) return false;
    }
    return true;
  }

  void add_to_best(const PairRank& rank, int64_t most, std::vector<PairRank>& best) {
    if (bound_ && rank < *bound_) return;
    best.push_back(rank);
    if (static_cast<int64_t>(best.size()) >= 2 * most) keep_best(most, best);
  }

  // Sets the bound to the least rank that is kept, if any is left out.
  void keep_best(int64_t most, std::vector<PairRank>& best) {
    if (static_cast<int64_t>(best.size()) <= most) return;
    const auto last = best.begin() + static_cast<std::ptrdiff_t>(most) - 1;
    std::nth_element(best.begin(), last, best.end(),
                     [](const PairRank& a, const PairRank& b) { return b < a; });
    bound_ = *last;
    best.resize(static_cast<size_t>(most));
  }

  // The blocks of the pairs that are in the index.
  Fit find_blocks() {
    for (PairIndex::Pair& pair : index_.pairs()) index_.take_blocks(pair);
    for (int64_t block = 0; block < words_.blocks(); ++block) {
      const auto number = static_cast<uint32_t>(block);
      words_.for_each_pair(number, [&](uint32_t left, uint32_t right, int64_t) {
        PairIndex::Pair* pair = index_.find(pair_key(left, right));
        if (pair == nullptr || (!pair->blocks.empty() && pair->blocks.back() == number)) return;
        index_.append_block(*pair, number);
      });
      if (index_.block_bytes() > index_limit_ / 4) return Fit::too_many_blocks;
    }
    return Fit::yes;
  }

  const MergeLearnerOptions& options_;
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
