#include "athanor/kernels/cpu/attention_blocks.h"

#include <algorithm>
#include <vector>

#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {
namespace {

TokenRange merge(const TokenRange& a, const TokenRange& b) {
  return {std::min(a.min_position, b.min_position), std::max(a.max_position, b.max_position),
          std::min(a.min_document, b.min_document), std::max(a.max_document, b.max_document)};
}

}  // namespace

Visibility visibility(const TokenRange& queries, const TokenRange& keys, int64_t window) {
  const auto distance = [](int32_t query, int32_t key) { return int64_t{query} - key; };
  if (keys.min_document > queries.max_document || keys.max_document < queries.min_document)
    return Visibility::none;
  if (keys.min_position > queries.max_position) return Visibility::none;
  if (window > 0 && distance(queries.min_position, keys.max_position) >= window) return Visibility::none;
  const bool one_document =
      keys.min_document == keys.max_document && queries.min_document == queries.max_document;
  if (!one_document || keys.max_position > queries.min_position) return Visibility::partial;
  if (window > 0 && distance(queries.max_position, keys.min_position) >= window) return Visibility::partial;
  return Visibility::full;
}

void find_group_ranges(const int32_t* positions, const int32_t* documents, int64_t count,
                       TokenRange* groups) {
  for (int64_t first = 0; first < count; first += attention_group) {
    TokenRange range{positions[first], positions[first], documents[first], documents[first]};
    const int64_t end = std::min(count, first + attention_group);
    for (int64_t i = first + 1; i < end; ++i)
      range = merge(range, {positions[i], positions[i], documents[i], documents[i]});
    *groups++ = range;
  }
}

void find_block_ranges(const TokenRange* groups, int64_t group_count, TokenRange* blocks) {
  for (int64_t first = 0; first < group_count; first += attention_groups_per_block) {
    TokenRange range = groups[first];
    const int64_t end = std::min(group_count, first + attention_groups_per_block);
    for (int64_t i = first + 1; i < end; ++i) range = merge(range, groups[i]);
    *blocks++ = range;
  }
}

Segments find_segments(const TokenRange& query_block, const TokenRange* query_groups,
                       int64_t query_group_count, const TokenRange& key_block, const TokenRange* key_groups,
                       int64_t keys, int64_t window) {
  Segments segments;
  const Visibility whole = visibility(query_block, key_block, window);
  if (whole == Visibility::none) return segments;
  if (whole == Visibility::full) {
    segments.items[segments.count++] = {0, keys, 0, query_group_count, false};
    return segments;
  }
  for (int64_t row = 0; row < keys; row += attention_group) {
    const TokenRange& key_group = key_groups[row / attention_group];
    int64_t first = -1, last = -1;
    bool masked = false;
    for (int64_t group = 0; group < query_group_count; ++group) {
      const Visibility part = visibility(query_groups[group], key_group, window);
      if (part == Visibility::none) continue;
      masked = masked || part == Visibility::partial || (first >= 0 && last != group - 1);
      if (first < 0) first = group;
      last = group;
    }
    if (first < 0) continue;
    const Segment segment{row, std::min(attention_group, keys - row), first, last - first + 1, masked};
    Segment* previous = segments.count > 0 ? &segments.items[segments.count - 1] : nullptr;
    if (previous != nullptr && previous->first_row + previous->rows == row &&
        previous->first_group == segment.first_group && previous->groups == segment.groups) {
      previous->rows += segment.rows;
      previous->masked = previous->masked || masked;
    } else {
      segments.items[segments.count++] = segment;
    }
  }
  return segments;
}

int64_t visible_blocks(const AttentionTokens& queries, const AttentionTokens& keys, int64_t batch,
                       int64_t query_length, int64_t key_length, int64_t window) {
  const int64_t query_group_count = ceil_divide(query_length, attention_group);
  const int64_t key_group_count = ceil_divide(key_length, attention_group);
  std::vector<TokenRange> query_groups(static_cast<size_t>(query_group_count));
  std::vector<TokenRange> key_groups(static_cast<size_t>(key_group_count));
  int64_t blocks = 0;
  for (int64_t b = 0; b < batch; ++b) {
    find_group_ranges(queries.positions + b * query_length, queries.documents + b * query_length,
                      query_length, query_groups.data());
    find_group_ranges(keys.positions + b * key_length, keys.documents + b * key_length, key_length,
                      key_groups.data());
    for (int64_t q = 0; q < query_group_count; q += attention_groups_per_block) {
      const int64_t q_groups = std::min(attention_groups_per_block, query_group_count - q);
      TokenRange query_block{};
      find_block_ranges(query_groups.data() + q, q_groups, &query_block);
      for (int64_t k = 0; k < key_group_count; k += attention_groups_per_block) {
        const int64_t k_groups = std::min(attention_groups_per_block, key_group_count - k);
        TokenRange key_block{};
        find_block_ranges(key_groups.data() + k, k_groups, &key_block);
        const int64_t key_count = std::min(attention_block, key_length - k * attention_group);
        const Segments segments = find_segments(query_block, query_groups.data() + q, q_groups, key_block,
                                                key_groups.data() + k, key_count, window);
        blocks += segments.count > 0 ? 1 : 0;
      }
    }
  }
  return blocks;
}

}  // namespace athanor::cpu
