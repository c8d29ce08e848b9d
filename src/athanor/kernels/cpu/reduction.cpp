#include "athanor/kernels/cpu/reduction.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/reduction.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

double sum_span(ConstSpan x, int64_t count) {
  double total = 0;
  if (x.dtype == DType::fp64) {
    const auto* values = reinterpret_cast<const double*>(x.data);
    for (int64_t i = 0; i < count; ++i) total += values[i];
    return total;
  }
  Source source(x);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* values = source.get(i, n);
    total += sum_vectors(n, [&](int64_t j, auto extent) HWY_ATTR { return load(values + j, extent); });
  });
  return total;
}

// The first index in [0, count) of an infinity or NaN, or -1. Chunks are looked through element by element
// only if one of them has an exponent of all ones.
int64_t non_finite_in(ConstSpan x, int64_t count) {
  if (x.dtype == DType::fp64) {
    const auto* values = reinterpret_cast<const double*>(x.data);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) return i;
    }
    return -1;
  }
  const hn::RebindToSigned<FloatTag> integers;
  Source source(x);
  for (int64_t i = 0; i < count; i += chunk_elements) {
    const int64_t n = std::min(chunk_elements, count - i);
    const float* values = source.get(i, n);
    auto largest = hn::Zero(integers);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      largest = hn::Max(largest, hn::BitCast(integers, hn::Abs(load(values + j, extent))));
    });
    if (hn::AllTrue(integers, hn::Lt(largest, hn::Set(integers, 0x7F800000)))) continue;
    for (int64_t j = 0; j < n; ++j) {
      if (!std::isfinite(values[j])) return i + j;
    }
  }
  return -1;
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(sum_span);
HWY_EXPORT(non_finite_in);

namespace {

// Tiles of whole rows where a row is short, of pieces of a row where it is long.
struct Grid {
  Grid(int64_t row_count, int64_t feature_count, bool compact)
      : rows(compact ? 1 : row_count),
        features(compact ? row_count * feature_count : feature_count),
        rows_per_tile(std::max<int64_t>(1, tile_elements / std::max<int64_t>(1, features))),
        pieces(ceil_divide(features, tile_elements)),
        tiles(ceil_divide(rows, rows_per_tile) * pieces) {}

  // Calls span(row, column, count) for what tile `index` covers.
  template <class Span>
  void for_tile(int64_t index, Span&& span) const {
    const int64_t first = index / pieces * rows_per_tile, column = index % pieces * tile_elements;
    for (int64_t row = first; row < std::min(rows, first + rows_per_tile); ++row)
      span(row, column, std::min(tile_elements, features - column));
  }

  int64_t rows, features, rows_per_tile, pieces, tiles;
};

}  // namespace

int64_t sum_workspace_bytes(int64_t rows, int64_t features) {
  const int64_t tiles = std::max(Grid(rows, features, false).tiles, Grid(rows, features, true).tiles);
  return tiles * static_cast<int64_t>(sizeof(double));
}

void sum(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, double* total, bool accumulate,
         std::byte* workspace) {
  const Grid grid(rows, features, x.stride == features);
  auto* sums = reinterpret_cast<double*>(workspace);
  team.parallel_for(grid.tiles, [&](int64_t index, int) {
    double tile_sum = 0;
    grid.for_tile(index, [&](int64_t row, int64_t column, int64_t count) {
      tile_sum += HWY_DYNAMIC_DISPATCH(sum_span)(x.at(row, column), count);
    });
    sums[index] = tile_sum;
  });
  double all = accumulate ? *total : 0;
  for (int64_t tile = 0; tile < grid.tiles; ++tile) all += sums[tile];
  *total = all;
}

int64_t first_non_finite(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x) {
  const Grid grid(rows, features, x.stride == features);
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first{none};
  team.parallel_for(grid.tiles, [&](int64_t index, int) {
    grid.for_tile(index, [&](int64_t row, int64_t column, int64_t count) {
      const int64_t found = HWY_DYNAMIC_DISPATCH(non_finite_in)(x.at(row, column), count);
      if (found < 0) return;
      const int64_t candidate = row * grid.features + column + found;
      int64_t best = first.load(std::memory_order_relaxed);
      while (candidate < best && !first.compare_exchange_weak(best, candidate, std::memory_order_relaxed)) {
      }
    });
  });
  const int64_t result = first.load(std::memory_order_relaxed);
  return result == none ? -1 : result;
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
