#include "athanor/comm/reduction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "athanor/base/error.h"
#include "athanor/comm/plain_copy.h"
#include "athanor/comm/plain_sum.h"

namespace athanor {
namespace {

// Elements that are summed at a time: the accumulators stay in the first-level cache.
constexpr int64_t block_size = 1024;

// Calls `action` with a value of the C++ type of `dtype`.
template <class Action>
void with_type(DType dtype, Action&& action) {
  switch (dtype) {
    case DType::fp64:
      return action(double{});
    case DType::fp32:
      return action(float{});
    case DType::bf16:
      return action(BFloat16{});
    case DType::fp16:
      return action(Float16{});
    case DType::int64:
      return action(int64_t{});
    case DType::int32:
      return action(int32_t{});
    default:
      ATHANOR_ASSERT(false, "no arithmetic on {}", name_of(dtype));
  }
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a > b || std::isnan(a) ? a : b;
  return a > b ? a : b;
}

// Integers wrap around.
template <class T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else
    return a + b;
}

template <class Accumulator, class T>
void load(const std::byte* data, int64_t first, int64_t count, Accumulator* __restrict values) {
  const T* const from = reinterpret_cast<const T*>(data) + first;
  for (int64_t i = 0; i < count; ++i) values[i] = convert<Accumulator>(from[i]);
}

template <class Accumulator, class T>
void accumulate(const std::byte* data, int64_t first, int64_t count, CollectiveReduction reduction,
                Accumulator* __restrict values) {
  const T* const from = reinterpret_cast<const T*>(data) + first;
  if (reduction == CollectiveReduction::sum) {
    for (int64_t i = 0; i < count; ++i) values[i] = sum(values[i], convert<Accumulator>(from[i]));
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = larger(values[i], convert<Accumulator>(from[i]));
  }
}

// Whether all is of the accumulator's type, which needs no conversion.
template <class T>
bool is_plain_sum(std::span<const CombineSource> sources, CollectiveReduction reduction, DType target_type,
                  size_t targets) {
  const DType own = dtype_of<T>::value;
  return reduction == CollectiveReduction::sum && sources.size() <= PlainSum<T>::most &&
         targets <= PlainSum<T>::most && target_type == own &&
         std::all_of(sources.begin(), sources.end(),
                     [](const CombineSource& source) { return source.dtype == dtype_of<T>::value; });
}

template <class T>
void sum_plainly(std::span<const CombineSource> sources, std::span<std::byte* const> targets, int64_t count) {
  PlainSum<T> sum;
  for (const CombineSource& source : sources)
    sum.sources[sum.source_count++] = reinterpret_cast<const T*>(source.data);
  for (std::byte* const target : targets) sum.targets[sum.target_count++] = reinterpret_cast<T*>(target);
  sum.count = count;
  plain_sum(sum);
}

template <class Accumulator>
void combine_as(std::span<const CombineSource> sources, CollectiveReduction reduction, DType target_type,
                std::span<std::byte* const> targets, int64_t count) {
  if constexpr (std::is_floating_point_v<Accumulator>) {
    if (is_plain_sum<Accumulator>(sources, reduction, target_type, targets.size()))
      return sum_plainly<Accumulator>(sources, targets, count);
  }
  alignas(64) std::array<Accumulator, block_size> values;
  for (int64_t first = 0; first < count; first += block_size) {
    const int64_t size = std::min(block_size, count - first);
    with_type(sources[0].dtype, [&](auto type) {
      load<Accumulator, decltype(type)>(sources[0].data, first, size, values.data());
    });
    for (const CombineSource& source : sources.subspan(1))
      with_type(source.dtype, [&](auto type) {
        accumulate<Accumulator, decltype(type)>(source.data, first, size, reduction, values.data());
      });
    with_type(target_type, [&](auto type) {
      using T = decltype(type);
      T* const to = reinterpret_cast<T*>(targets[0]) + first;
      for (int64_t i = 0; i < size; ++i) to[i] = convert<T>(values[static_cast<size_t>(i)]);
      for (std::byte* const target : targets.subspan(1))
        std::memcpy(reinterpret_cast<T*>(target) + first, to, static_cast<size_t>(size) * sizeof(T));
    });
  }
}

}  // namespace

void combine(std::span<const CombineSource> sources, CollectiveReduction reduction, DType accumulator,
             DType target_type, std::span<std::byte* const> targets, int64_t count) {
  if (count == 0) return;
  if (sources.size() == 1 && sources[0].dtype == target_type) {
    for (std::byte* const target : targets)
      plain_copy(target, sources[0].data, static_cast<size_t>(count) * size_of(target_type));
    return;
  }
  switch (accumulator) {
    case DType::fp64:
      return combine_as<double>(sources, reduction, target_type, targets, count);
    case DType::fp32:
      return combine_as<float>(sources, reduction, target_type, targets, count);
    case DType::int64:
      return combine_as<int64_t>(sources, reduction, target_type, targets, count);
    case DType::int32:
      return combine_as<int32_t>(sources, reduction, target_type, targets, count);
    default:
      ATHANOR_ASSERT(false, "{} does not accumulate", name_of(accumulator));
  }
}

}  // namespace athanor
