// Which of several weighted sources each sample comes from.
//
// Of the first n samples, each source with the share p of the weights has floor(p n) or ceil(p n): never a
// whole sample away from its share, for any n and without rounding, because weights are exact numbers. Called
// by SampleMix. Thread safety: all functions may be called from several threads.
//
// Source: the quota property by earliest deadlines. The j-th sample of a source (from 0) may not come before
// place floor(j / p) and must come before place ceil((j + 1) / p); each place goes to the source whose next
// deadline is first among those that may. That such windows can always be met is shown by Baruah, Cohen,
// Plaxton and Varvel, "Proportionate progress: a notion of fairness in resource allocation" (1996); earliest
// deadline first meets what can be met on one machine (Liu and Layland 1973, Horn 1974).
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace athanor {

// Decimal numbers ("0.7", "3", "1e-9"; not negative, not all zero) as whole numbers in the same proportion,
// without a common divisor. User error for anything else, or if they need more than 2^53 together.
std::vector<int64_t> whole_weights(std::span<const std::string> decimals);

// User error if it is no such number.
void check_weight(const std::string& decimal);

class BlendOrder {
 public:
  struct Draw {
    size_t source = 0;
    int64_t index = 0;  // draws of that source before this one
    friend bool operator==(const Draw&, const Draw&) = default;
  };

  // Whole weights, at least one above 0; their sum is at most 2^53. A source of weight 0 is never drawn.
  explicit BlendOrder(std::vector<int64_t> weights);
  // With what is known: draws of each source among the first n.
  BlendOrder(std::vector<int64_t> weights, int64_t n, std::vector<int64_t> counts);
  BlendOrder(const BlendOrder& other);
  BlendOrder& operator=(const BlendOrder&) = delete;

  const std::vector<int64_t>& weights() const { return weights_; }
  // Place n >= 0. Going on from the place before costs one step; anywhere else as many as there are from what
  // is known, from the last multiple of the sum of weights, where all begins anew, or, within 200,000 places
  // of the furthest one, from a mark at most 4,096 places before.
  Draw draw(int64_t n) const;
  // Draws of each source among the first n.
  std::vector<int64_t> counts(int64_t n) const;
  // At most so many: the share of n rounded up.
  int64_t most(size_t source, int64_t n) const;
  // Whether these can be the counts after n: each its share rounded down or up, n together.
  bool possible(int64_t n, std::span<const int64_t> counts) const;

 private:
  struct Cursor {
    int64_t n = 0;
    std::vector<int64_t> counts;
  };
  size_t next(const Cursor& cursor) const;
  void move_to(int64_t n) const;  // with the lock held

  std::vector<int64_t> weights_;
  int64_t total_ = 0;
  Cursor known_;
  mutable std::mutex mutex_;
  mutable Cursor cursor_;
  mutable std::deque<Cursor> marks_;  // on the way here, rising
};

}  // namespace athanor
