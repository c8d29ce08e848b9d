// Causal attention over a sequence that a ring of ranks shares: each rank computes as much as the others, and
// all together no more than one would.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "athanor/ir/placement.h"
#include "athanor/kernels/cpu/attention_test_support.h"

namespace athanor::cpu {
namespace {

using testing::Tensor;

struct Ring {
  int32_t ranks = 1;
  int64_t piece = 64;  // two of them a rank
  int64_t window = 0;
  ShardPattern pattern = ShardPattern::zigzag;

  int64_t length() const { return 2 * ranks * piece; }
  std::vector<int32_t> positions_of(int32_t rank) const {
    const Mesh mesh = mesh_of(Axis::context, ranks);
    const Placements placements =
        placements_of(Axis::context, {.kind = PlacementKind::shard, .pattern = pattern});
    std::vector<int32_t> positions;
    const auto stored = stored_ranges({length()}, placements, mesh, coordinates_of(mesh, rank));
    for (const Range& range : stored[0])
      for (int64_t at = range.begin; at < range.end; ++at) positions.push_back(static_cast<int32_t>(at));
    return positions;
  }
};

// Blocks that forward computes for the queries and keys at these positions; backward computes as many.
int64_t computed_blocks(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys,
                        int64_t window) {
  static ThreadTeam team(2);
  const AttentionShape shape{1, static_cast<int64_t>(queries.size()), static_cast<int64_t>(keys.size()), 1, 1,
                             8};
  const std::vector<int32_t> query_documents(queries.size(), 0), key_documents(keys.size(), 0);
  testing::AttentionTensors t;
  t.q = t.dout = Tensor(DType::fp32, shape.query_length, 8).fill("q");
  t.k = Tensor(DType::fp32, shape.key_length, 8).fill("k");
  t.v = Tensor(DType::fp32, shape.key_length, 8).fill("v");
  t.out = t.dq = Tensor(DType::fp32, shape.query_length, 8);
  t.dk = t.dv = Tensor(DType::fp32, shape.key_length, 8);
  t.logsumexp = Tensor(DType::fp32, shape.query_length, 1);
  AttentionOptions options;
  options.window = window;
  const testing::ComputedBlocks computed =
      forward_and_backward(shape, options, {queries.data(), query_documents.data(), nullptr},
                           {keys.data(), key_documents.data(), nullptr}, t, team);
  EXPECT_EQ(computed.forward, computed.backward);
  return computed.forward;
}

// [rank][step]: in step s a rank has the keys of the rank s places before it.
std::vector<std::vector<int64_t>> blocks_of(const Ring& ring) {
  std::vector<std::vector<int64_t>> blocks;
  for (int32_t rank = 0; rank < ring.ranks; ++rank) {
    blocks.emplace_back();
    for (int32_t step = 0; step < ring.ranks; ++step) {
      const int32_t source = (rank - step + ring.ranks) % ring.ranks;
      blocks.back().push_back(
          computed_blocks(ring.positions_of(rank), ring.positions_of(source), ring.window));
    }
  }
  return blocks;
}

struct Spread {
  int64_t least = 0, most = 0, total = 0;
};
Spread spread_of(const std::vector<int64_t>& work) {
  const auto [least, most] = std::minmax_element(work.begin(), work.end());
  return {*least, *most, std::accumulate(work.begin(), work.end(), int64_t{0})};
}
Spread spread_of_ranks(const std::vector<std::vector<int64_t>>& blocks) {
  std::vector<int64_t> work;
  for (const auto& steps : blocks) work.push_back(spread_of(steps).total);
  return spread_of(work);
}

TEST(AttentionRing, RanksComputeEquallyMuch) {
  for (const Ring& ring : {Ring{2, 256}, Ring{3, 192}, Ring{4, 128}, Ring{8, 64}}) {
    SCOPED_TRACE(ring.ranks);
    const auto blocks = blocks_of(ring);
    const Spread ranks = spread_of_ranks(blocks);
    const int64_t side = ring.length() / 64;
    EXPECT_EQ(ranks.total, side * (side + 1) / 2);  // what one rank would compute
    EXPECT_EQ(ranks.least, ranks.most);
    // In every step, so nobody waits for keys of a rank that is still at work.
    for (size_t step = 0; step < blocks[0].size(); ++step) {
      for (const auto& steps : blocks) EXPECT_EQ(steps[step], blocks[0][step]) << step;
    }
  }
}

// Where pieces end within a block, that block is computed on two ranks.
TEST(AttentionRing, RanksComputeAboutEquallyMuchOfAnyLength) {
  for (const Ring& ring : {Ring{2, 1000}, Ring{3, 1100}, Ring{4, 1030}}) {
    SCOPED_TRACE(ring.ranks);
    const Spread ranks = spread_of_ranks(blocks_of(ring));
    const int64_t side = (ring.length() + 63) / 64;
    EXPECT_LE(static_cast<double>(ranks.most), 1.04 * static_cast<double>(ranks.least));
    EXPECT_LE(static_cast<double>(ranks.total), 1.15 * static_cast<double>(side * (side + 1)) / 2);
  }
}

// What the pattern is for: one piece after another leaves most of the work to the last rank.
TEST(AttentionRing, ContiguousPartsWouldNotBeBalanced) {
  const Spread ranks = spread_of_ranks(blocks_of({4, 128, 0, ShardPattern::contiguous}));
  EXPECT_GT(ranks.most, 4 * ranks.least);
  EXPECT_EQ(ranks.total, 16 * 17 / 2);
}

// With a window whole parts are out of sight.
TEST(AttentionRing, SkipsWhatNoQuerySees) {
  const Ring ring{4, 256, 200};
  const Spread ranks = spread_of_ranks(blocks_of(ring));
  std::vector<int32_t> whole(static_cast<size_t>(ring.length()));
  std::iota(whole.begin(), whole.end(), 0);
  EXPECT_EQ(ranks.total, computed_blocks(whole, whole, ring.window));
  EXPECT_LT(ranks.total, 32 * 33 / 2 / 3);
}

}  // namespace
}  // namespace athanor::cpu
