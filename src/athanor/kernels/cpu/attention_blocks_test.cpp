#include "athanor/kernels/cpu/attention_blocks.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace athanor::cpu {
namespace {

TEST(AttentionBlocks, VisibilityFromRanges) {
  const auto range = [](int32_t low, int32_t high, int32_t document = 0) {
    return TokenRange{low, high, document, document};
  };
  EXPECT_EQ(visibility(range(0, 15), range(16, 31), 0), Visibility::none);
  EXPECT_EQ(visibility(range(0, 16), range(16, 31), 0), Visibility::partial);
  EXPECT_EQ(visibility(range(31, 40), range(16, 31), 0), Visibility::full);
  EXPECT_EQ(visibility(range(30, 40), range(16, 31), 0), Visibility::partial);
  EXPECT_EQ(visibility(range(31, 40), range(16, 31), 25), Visibility::full);
  EXPECT_EQ(visibility(range(31, 40), range(16, 31), 24), Visibility::partial);
  EXPECT_EQ(visibility(range(55, 60), range(16, 31), 24), Visibility::none);
  EXPECT_EQ(visibility(range(54, 60), range(16, 31), 24), Visibility::partial);
  EXPECT_EQ(visibility(range(31, 40, 1), range(16, 31, 0), 0), Visibility::none);
  EXPECT_EQ(visibility({31, 40, 0, 1}, range(16, 31, 0), 0), Visibility::partial);
  constexpr int32_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(visibility(range(most, most), range(least, least), 5), Visibility::none);
  EXPECT_EQ(visibility(range(least, most), range(least, most), 5), Visibility::partial);
}

TEST(AttentionBlocks, SegmentsOfADiagonalBlock) {
  std::vector<int32_t> positions(64), documents(64, 0);
  for (size_t i = 0; i < 64; ++i) positions[i] = static_cast<int32_t>(i);
  TokenRange groups[4], block;
  find_group_ranges(positions.data(), documents.data(), 64, groups);
  find_block_ranges(groups, 4, &block);
  const Segments segments = find_segments(block, groups, 4, block, groups, 64, 0);
  ASSERT_EQ(segments.count, 4);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(segments.items[i].first_row, 16 * i);
    EXPECT_EQ(segments.items[i].rows, 16);
    EXPECT_EQ(segments.items[i].first_group, i);
    EXPECT_EQ(segments.items[i].groups, 4 - i);
    EXPECT_TRUE(segments.items[i].masked);
  }
}

// Documents of 20 tokens in a row: what the diagonal of a block holds, and nothing else.
TEST(AttentionBlocks, SegmentsOfDocuments) {
  std::vector<int32_t> positions(128), documents(128);
  for (size_t i = 0; i < 128; ++i) {
    positions[i] = static_cast<int32_t>(i % 20);
    documents[i] = static_cast<int32_t>(i / 20);
  }
  TokenRange groups[8], blocks[2];
  find_group_ranges(positions.data(), documents.data(), 128, groups);
  find_block_ranges(groups, 8, blocks);
  const auto segments = find_segments(blocks[1], groups + 4, 4, blocks[0], groups, 64, 0);
  // Only document 3, tokens 60 to 79, lies in both blocks: the last keys, seen from the first queries.
  ASSERT_EQ(segments.count, 1);
  EXPECT_EQ(segments.items[0].first_row, 48);
  EXPECT_EQ(segments.items[0].rows, 16);
  EXPECT_EQ(segments.items[0].first_group, 0);
  EXPECT_EQ(segments.items[0].groups, 1);
  EXPECT_TRUE(segments.items[0].masked);
  // The other way round nothing is visible, but ranges of positions alone cannot tell.
  EXPECT_EQ(find_segments(blocks[0], groups, 4, blocks[1], groups + 4, 64, 0).count, 1);
  const AttentionTokens tokens{positions.data(), documents.data(), nullptr};
  EXPECT_EQ(visible_blocks(tokens, tokens, 1, 128, 128, 0), 4);
}

}  // namespace
}  // namespace athanor::cpu
