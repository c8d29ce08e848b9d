#include "athanor/checkpoint/tensor_conversion.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "athanor/base/error.h"

namespace athanor {
namespace {

// Calls `use` with a value of the C++ type that stores `dtype`.
template <class Use>
int64_t with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::fp64:
      return use(double{});
    case DType::fp32:
      return use(float{});
    case DType::bf16:
      return use(BFloat16{});
    case DType::fp16:
      return use(Float16{});
    default:
      ATHANOR_ASSERT(false, "no conversion for {}", name_of(dtype));
  }
}

template <class Stored>
Stored element(std::span<const std::byte> bytes, size_t index) {
  Stored value{};
  std::memcpy(&value, bytes.data() + index * sizeof(Stored), sizeof(Stored));
  return value;
}

template <class From, class To>
int64_t convert(std::span<const std::byte> in, std::span<std::byte> out) {
  const size_t count = in.size() / sizeof(From);
  int64_t overflow = -1;
  for (size_t i = 0; i < count; ++i) {
    To value{};
    bool lost = false;
    if constexpr (std::is_same_v<To, double>) {
      if constexpr (std::is_same_v<From, double>) {
        value = element<From>(in, i);
      } else {
        value = static_cast<double>(static_cast<float>(element<From>(in, i)));
      }
    } else {
      const auto from = element<From>(in, i);
      value = To(static_cast<float>(from));
      lost = !std::isfinite(static_cast<float>(value));
      if (lost) {
        if constexpr (std::is_same_v<From, double>) {
          lost = std::isfinite(from);
        } else {
          lost = std::isfinite(static_cast<float>(from));
        }
      }
    }
    std::memcpy(out.data() + i * sizeof(To), &value, sizeof(To));
    if (lost && overflow < 0) overflow = static_cast<int64_t>(i);
  }
  return overflow;
}

}  // namespace

bool is_convertible(DType dtype) {
  return dtype == DType::fp64 || dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

int64_t convert_floats(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
  ATHANOR_ASSERT(in.size() % size_of(from) == 0 && in.size() / size_of(from) * size_of(to) == out.size());
  if (from == to) {
    std::copy(in.begin(), in.end(), out.begin());
    return -1;
  }
  return with_type(from, [&](auto source) {
    return with_type(to, [&](auto target) { return convert<decltype(source), decltype(target)>(in, out); });
  });
}

double float_at(DType dtype, std::span<const std::byte> bytes, int64_t index) {
  double value = 0;
  with_type(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    if constexpr (std::is_same_v<Stored, double>) {
      value = element<Stored>(bytes, static_cast<size_t>(index));
    } else {
      value = static_cast<double>(static_cast<float>(element<Stored>(bytes, static_cast<size_t>(index))));
    }
    return int64_t{0};
  });
  return value;
}

int64_t first_non_finite(DType dtype, std::span<const std::byte> bytes) {
  return with_type(dtype, [&](auto stored) -> int64_t {
    using Stored = decltype(stored);
    for (size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
      const auto value = element<Stored>(bytes, i);
      bool finite = false;
      if constexpr (std::is_same_v<Stored, double>) {
        finite = std::isfinite(value);
      } else {
        finite = std::isfinite(static_cast<float>(value));
      }
      if (!finite) return static_cast<int64_t>(i);
    }
    return -1;
  });
}

}  // namespace athanor
