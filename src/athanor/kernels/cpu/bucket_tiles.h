// How work on a bucket of parameters is cut: every tile belongs to one member and starts at a multiple of
// `length` from the member's start, so neither the team nor the neighbours in the bucket change how a
// member's numbers are summed.
//
// Made once when a program is loaded, read by the optimizer kernels. Thread safety: constant once made.
#pragma once

#include <cstdint>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor::cpu {

struct BucketTiles {
  static constexpr int64_t length = 16384;

  struct Tile {
    int64_t member, offset, count;  // elements [offset, offset + count) of the bucket
  };
  struct Member {
    double weight_decay, learning_rate_factor;
    bool has_trust_ratio;  // LAMB: matrices and embeddings, not norms and biases
    int64_t first_tile, tile_count;
  };

  explicit BucketTiles(const BucketTable& table);
  // No bucket of `elements` elements and `member_count` members has more tiles.
  static constexpr int64_t most_tiles(int64_t elements, int64_t member_count) {
    return elements / length + member_count;
  }
  int64_t tile_count() const { return static_cast<int64_t>(tiles.size()); }
  int64_t member_count() const { return static_cast<int64_t>(members.size()); }

  std::vector<Tile> tiles;
  std::vector<Member> members;
};

}  // namespace athanor::cpu
