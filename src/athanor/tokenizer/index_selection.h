// Chooses the pairs that an index of pairs holds when memory does not suffice for all of them, and finds the
// blocks of words that hold these.
//
// Called by merge_learner.cpp. `Symbol` is that of the WordBlocks. Thread safety: a call uses its own
// threads; what it yields does not depend on their number, but for the order of blocks in a list.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "athanor/tokenizer/pair_counts.h"
#include "athanor/tokenizer/pair_index.h"
#include "athanor/tokenizer/training_threads.h"
#include "athanor/tokenizer/word_blocks.h"

namespace athanor {

struct IndexSelection {
  struct Pair {
    PairRank rank;
    int64_t blocks = 0;  // that hold it
  };
  std::vector<Pair> pairs;        // in falling rank
  std::optional<PairRank> bound;  // all pairs of this rank and above are there; none: simply all
};

template <typename Symbol>
class IndexSelector {
 public:
  IndexSelector(const WordBlocks<Symbol>& words, int threads, int64_t memory_bytes)
      : words_(words), threads_(threads), memory_bytes_(memory_bytes) {}

  // The pairs of the greatest ranks, `most_pairs` at most, whose lists of blocks have `most_entries` blocks
  // together at most.
  IndexSelection select(int64_t most_pairs, int64_t most_entries) const {
    Best best(most_pairs);
    if (!count_ranges(best)) count_parts(best);
    IndexSelection result = best.take();
    int64_t entries = 0;
    for (size_t i = 0; i < result.pairs.size(); ++i) {
      entries += result.pairs[i].blocks;
      if (entries <= most_entries) continue;
      result.pairs.resize(i);
      if (i > 0) result.bound = result.pairs.back().rank;
      break;
    }
    return result;
  }

  // Adds the pairs with their counts and blocks.
  void fill(PairIndex& index, const IndexSelection& selection) const {
    std::vector<std::atomic<uint32_t>> used(selection.pairs.size());
    for (const IndexSelection::Pair& pair : selection.pairs) {
      PairIndex::Pair& added = index.find_or_add(pair.rank.key);
      added.count = pair.rank.count;
      index.resize_blocks(added, static_cast<size_t>(pair.blocks));
    }
    on_ranges([&](int64_t begin, int64_t end, int) {
      std::vector<uint32_t> last(selection.pairs.size(), no_block);
      for (int64_t block = begin; block < end; ++block) {
        const auto number = static_cast<uint32_t>(block);
        words_.for_each_pair(number, [&](uint32_t left, uint32_t right, int64_t) {
          PairIndex::Pair* pair = index.find(pair_key(left, right));
          if (pair == nullptr) return;
          const auto place = static_cast<size_t>(pair - index.pairs().data());
          if (last[place] == number) return;
          last[place] = number;
          pair->blocks[used[place].fetch_add(1, std::memory_order_relaxed)] = number;
        });
      }
    });
  }

 private:
  static constexpr uint32_t no_block = std::numeric_limits<uint32_t>::max();

  // The pairs of the greatest ranks of those that were added.
  class Best {
   public:
    explicit Best(int64_t most) : most_(static_cast<size_t>(most)) {}

    void clear() {
      pairs_.clear();
      bound_.reset();
    }

    void add(const PairCounts::Entry& entry) {
      const PairRank rank{entry.count, entry.key};
      if (bound_ && rank < *bound_) return;
      pairs_.push_back({rank, entry.blocks});
      if (pairs_.size() >= 2 * most_) cut();
    }

    IndexSelection take() {
      cut();
      std::sort(pairs_.begin(), pairs_.end(), above);
      return {std::move(pairs_), bound_};
    }

   private:
    static bool above(const IndexSelection::Pair& a, const IndexSelection::Pair& b) {
      return b.rank < a.rank;
    }

    void cut() {
      if (pairs_.size() <= most_) return;
      const auto last = pairs_.begin() + static_cast<std::ptrdiff_t>(most_) - 1;
      std::nth_element(pairs_.begin(), last, pairs_.end(), above);
      bound_ = last->rank;
      pairs_.resize(most_);
    }

    size_t most_;
    std::vector<IndexSelection::Pair> pairs_;
    std::optional<PairRank> bound_;
  };

  // body(first block, behind the last, number of the range) for as many ranges as threads.
  void on_ranges(const std::function<void(int64_t, int64_t, int)>& body) const {
    const int64_t blocks = words_.blocks();
    std::atomic<int> next = 0;
    run_on_threads(threads_, [&](int) {
      for (int range = next++; range < threads_; range = next++) {
        body(blocks * range / threads_, blocks * (range + 1) / threads_, range);
      }
    });
  }

  // Each thread counts all pairs of its range of blocks. False if there are too many.
  bool count_ranges(Best& best) const {
    std::vector<std::unique_ptr<PairCounts>> tables;
    for (int range = 0; range < threads_; ++range) {
      tables.push_back(std::make_unique<PairCounts>(memory_bytes_ / (threads_ > 1 ? threads_ + 1 : 1)));
    }
    std::atomic<bool> fits = true;
    on_ranges([&](int64_t begin, int64_t end, int range) {
      PairCounts& table = *tables[static_cast<size_t>(range)];
      for (int64_t block = begin; block < end && fits; ++block) {
        bool room = true;
        words_.for_each_pair(static_cast<uint32_t>(block), [&](uint32_t left, uint32_t right, int64_t count) {
          room = room && table.add(pair_key(left, right), count, static_cast<uint32_t>(block));
        });
        if (!room) fits = false;
      }
    });
    if (!fits) return false;
    if (tables.size() == 1) {
      tables.front()->for_each([&](const PairCounts::Entry& entry) { best.add(entry); });
      return true;
    }
    PairCounts sum(memory_bytes_ / (threads_ + 1));
    bool room = true;
    for (std::unique_ptr<PairCounts>& table : tables) {
      table->for_each([&](const PairCounts::Entry& entry) { room = room && sum.add(entry); });
      table.reset();
    }
    if (room) sum.for_each([&](const PairCounts::Entry& entry) { best.add(entry); });
    return room;
  }

  // Each thread counts a part of the pairs, by their hash, in all blocks, then another part.
  void count_parts(Best& best) const {
    std::mutex mutex;
    std::atomic<bool> fits = false;
    for (int64_t parts = threads_; !fits; parts *= 2) {
      best.clear();
      fits = true;
      std::atomic<int64_t> next = 0;
      run_on_threads(threads_, [&](int) {
        for (int64_t part = next++; part < parts && fits; part = next++) {
          PairCounts counted(memory_bytes_ / threads_);
          if (!count_part(part, parts, counted)) {
            fits = false;
            return;
          }
          const std::lock_guard lock(mutex);
          counted.for_each([&](const PairCounts::Entry& entry) { best.add(entry); });
        }
      });
    }
  }

  bool count_part(int64_t part, int64_t parts, PairCounts& counted) const {
    for (int64_t block = 0; block < words_.blocks(); ++block) {
      bool room = true;
      words_.for_each_pair(static_cast<uint32_t>(block), [&](uint32_t left, uint32_t right, int64_t count) {
        const PairKey key = pair_key(left, right);
        // The table uses the lower bits.
        if (static_cast<int64_t>((hash_pair(key) >> 32) * static_cast<uint64_t>(parts) >> 32) != part) return;
        room = room && counted.add(key, count, static_cast<uint32_t>(block));
      });
      if (!room) return false;
    }
    return true;
  }

  const WordBlocks<Symbol>& words_;
  const int threads_;
  const int64_t memory_bytes_;
};

}  // namespace athanor
