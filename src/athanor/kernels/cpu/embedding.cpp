#include "athanor/kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/elementwise.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void copy_row(ConstSpan from, Span to, int64_t count) {
  Source source(from);
  Sink sink(to);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR { sink.put(source.get(i, n), i, n); });
}

// sum[0 .. count) += row; count <= chunk_elements.
void add_to_row(ConstSpan row, float* HWY_RESTRICT sum, int64_t count) {
  HWY_ALIGN float buffer[chunk_elements];
  const float* values = widen(row.data, row.dtype, count, buffer);
  for_vectors(count, [&](int64_t j, auto extent) HWY_ATTR {
    store(hn::Add(load(sum + j, extent), load(values + j, extent)), sum + j, extent);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(copy_row);
HWY_EXPORT(add_to_row);

namespace {

void check_ids(const int32_t* ids, int64_t tokens, int64_t vocabulary) {
  for (int64_t token = 0; token < tokens; ++token) {
    if (ids[token] < 0 || ids[token] >= vocabulary) {
      throw_user_error(fmt::format("token id {} at position {} of the batch is outside the vocabulary of {}",
                                   ids[token], token, vocabulary),
                       "the data was made with another tokenizer, or the model's vocabulary is too small");
    }
  }
}

// A token and the row of its id in one number that sorts by row, then by token.
uint64_t sort_key(int64_t row, int64_t token) {
  return static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(token);
}
int64_t row_of(uint64_t key) {
  return static_cast<int64_t>(key >> 32);
}
int64_t token_of(uint64_t key) {
  return static_cast<int64_t>(key & 0xFFFFFFFFu);
}

// The keys whose runs of equal rows begin in [begin, end): what one tile adds up.
std::span<const uint64_t> runs_beginning_in(std::span<const uint64_t> keys, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(keys.size());
  const auto row_at = [&](int64_t i) { return row_of(keys[static_cast<size_t>(i)]); };
  const auto next_run = [&](int64_t i) {
    while (i > 0 && i < size && row_at(i) == row_at(i - 1)) ++i;
    return i;
  };
  const int64_t first = next_run(begin), last = next_run(std::min(end, size));
  return keys.subspan(static_cast<size_t>(first), static_cast<size_t>(std::max<int64_t>(0, last - first)));
}

}  // namespace

void embedding(ThreadTeam& team, const Embedding& arguments) {
  const Embedding& a = arguments;
  check_ids(a.ids, a.tokens, a.vocabulary);
  const int64_t tile = std::max<int64_t>(1, tile_elements / std::max<int64_t>(1, a.features));
  team.parallel_for(ceil_divide(a.tokens, tile), [&](int64_t index, int) {
    for (int64_t token = index * tile; token < std::min(a.tokens, (index + 1) * tile); ++token) {
      const int64_t row = a.ids[token] - a.first;
      const Span y = a.y.at(token);
      if (row >= 0 && row < a.rows) {
        HWY_DYNAMIC_DISPATCH(copy_row)(a.table.at(row), y, a.features);
      } else {
        std::memset(y.data, 0, static_cast<size_t>(a.features) * size_of(y.dtype));
      }
    }
  });
}

int64_t embedding_gradient_workspace_bytes(int64_t tokens) {
  return tokens * static_cast<int64_t>(sizeof(uint64_t));
}

void embedding_gradient(ThreadTeam& team, const EmbeddingGradient& arguments, std::byte* workspace) {
  const EmbeddingGradient& a = arguments;
  check_ids(a.ids, a.tokens, a.vocabulary);
  if (!a.accumulate) fill_zero(team, a.rows, a.features, rows_of(a.dtable, a.features));
  auto* first_key = reinterpret_cast<uint64_t*>(workspace);
  int64_t count = 0;
  for (int64_t token = 0; token < a.tokens; ++token) {
    const int64_t row = a.ids[token] - a.first;
    if (row >= 0 && row < a.rows) first_key[count++] = sort_key(row, token);
  }
  const std::span<uint64_t> keys(first_key, static_cast<size_t>(count));
  std::sort(keys.begin(), keys.end());
  constexpr int64_t tile = 32;
  const int64_t tiles = ceil_divide(count, tile), chunks = ceil_divide(a.features, chunk_elements);
  team.parallel_for(tiles * chunks, [&](int64_t index, int) {
    const int64_t begin = index / chunks * tile, column = index % chunks * chunk_elements;
    const int64_t width = std::min(chunk_elements, a.features - column);
    for (const uint64_t key : runs_beginning_in(keys, begin, begin + tile)) {
      HWY_DYNAMIC_DISPATCH(add_to_row)
      (a.dy.at(token_of(key), column), a.dtable + row_of(key) * a.features + column, width);
    }
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
