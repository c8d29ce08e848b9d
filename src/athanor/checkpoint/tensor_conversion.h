// Float tensors from one type to another, as files are read and written.
//
// Called by readers and writers of weights. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "athanor/ir/dtype.h"

namespace athanor {

// fp64, fp32, bf16 and fp16.
bool is_convertible(DType dtype);

// Converts every element; both types are convertible and the sizes fit. To nearest, ties to even; fp64 goes
// to the 16-bit types by way of fp32. Returns the index of the first finite element that became infinite, or
// -1. No alignment is asked for.
int64_t convert_floats(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

// The value of an element of a convertible type.
double float_at(DType dtype, std::span<const std::byte> bytes, int64_t index);

// The index of the first element that is not finite, or -1.
int64_t first_non_finite(DType dtype, std::span<const std::byte> bytes);

}  // namespace athanor
