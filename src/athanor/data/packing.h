// Windows of whole documents: the other way to cut samples from tokens, beside windows of the stream.
//
// A document of n tokens takes n - 1 places, for each token but the last predicts the next and nothing is
// learned across documents; one of a single token teaches nothing and is left out. A document that takes
// more places than a window has is cut into pieces that fill windows, and a rest. Pieces are taken in groups
// of 65,536 in the order of the source, and a group is packed by best fit, longest first: each piece goes
// into the window with the least space left that still holds it, of equals into the one that came to that
// space last; without one into a new window. Within a window, documents are in the order of the source. So
// the windows depend on nothing but documents and sequence length.
//
// Called by SampleSet. Thread safety: a value, read by any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "athanor/data/token_source.h"

namespace athanor {

// Holds 16 bytes for every piece and 8 for every window.
class PackedWindows {
 public:
  // The documents of `tokens`, as far as they lie in `range`; sequence_length >= 1.
  PackedWindows(const TokenSource& tokens, TokenRange range, int64_t sequence_length);

  int64_t window_count() const { return static_cast<int64_t>(first_pieces_.size()) - 1; }
  // Tokens of the pieces of a window: each takes size() - 1 places.
  std::span<const TokenRange> pieces(int64_t window) const;
  int64_t places() const { return places_; }  // that are taken, in all windows

 private:
  void pack(std::vector<TokenRange>& group, int64_t sequence_length);

  std::vector<TokenRange> pieces_;
  std::vector<int64_t> first_pieces_{0};  // of each window, and their number
  int64_t places_ = 0;
};

}  // namespace athanor
