// Which blocks of the query x key plane attention computes, from the values that masks compare.
//
// Called by the attention kernels, their tests and cost models. Thread safety: pure functions.
//
// The plane is cut into blocks of 64 queries x 64 keys and these into groups of 16 x 16. Each block and
// group of tokens is known by the ranges of its positions and documents alone: enough to see that nothing
// in it is visible, or everything.
#pragma once

#include <cstdint>

namespace athanor::cpu {

inline constexpr int64_t attention_block = 64;
inline constexpr int64_t attention_group = 16;
inline constexpr int64_t attention_groups_per_block = attention_block / attention_group;

// What masks and dropout are told about the tokens of one side.
struct AttentionTokens {
  const int32_t* positions = nullptr;  // [B,S] position within the document
  const int32_t* documents = nullptr;  // [B,S] number of the document within the sample
  const int32_t* indices = nullptr;    // [B,S] index within the sample; only for dropout
};

// The range of a set of tokens; both ends belong to it.
struct TokenRange {
  int32_t min_position, max_position;
  int32_t min_document, max_document;
};

enum class Visibility : uint8_t { none, partial, full };

// Of the keys from the queries, as far as the ranges tell: `none` and `full` are certain.
Visibility visibility(const TokenRange& queries, const TokenRange& keys, int64_t window);

// Ranges of `count` tokens in pieces of `attention_group`, and the ranges of blocks from those of their
// groups.
void find_group_ranges(const int32_t* positions, const int32_t* documents, int64_t count, TokenRange* groups);
void find_block_ranges(const TokenRange* groups, int64_t group_count, TokenRange* blocks);

// A rectangle of a block: some key rows and the hull of the query groups that see any of them.
struct Segment {
  int64_t first_row, rows;      // keys
  int64_t first_group, groups;  // of queries
  bool masked;                  // holds invisible pairs
};
struct Segments {
  Segment items[attention_groups_per_block];
  int64_t count = 0;

  const Segment* begin() const { return items; }
  const Segment* end() const { return items + count; }
};

// What has to be computed of one block: `keys` key tokens seen from `query_group_count` groups of queries.
// Rows of different segments are disjoint and in order.
Segments find_segments(const TokenRange& query_block, const TokenRange* query_groups,
                       int64_t query_group_count, const TokenRange& key_block, const TokenRange* key_groups,
                       int64_t keys, int64_t window);

// Number of 64 x 64 blocks that are computed for one head, over the batch.
int64_t visible_blocks(const AttentionTokens& queries, const AttentionTokens& keys, int64_t batch,
                       int64_t query_length, int64_t key_length, int64_t window);

}  // namespace athanor::cpu
