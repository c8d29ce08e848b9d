// Combines values of several sources: the arithmetic of collectives.
//
// Called by interpreter.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "athanor/comm/collective.h"

namespace athanor {

struct CombineSource {
  const std::byte* data = nullptr;
  DType dtype = DType::fp32;
};

// target[i] = ((source 0 [i] o source 1 [i]) o source 2 [i]) ..., each source converted to `accumulator`
// first and the outcome to `target_type` last, for i < count, the same in every target. One source of the
// targets' type is copied as it is. A target may be one of the sources, not overlap one otherwise. Data is
// aligned to its type.
void combine(std::span<const CombineSource> sources, CollectiveReduction reduction, DType accumulator,
             DType target_type, std::span<std::byte* const> targets, int64_t count);
inline void combine(std::span<const CombineSource> sources, CollectiveReduction reduction, DType accumulator,
                    DType target_type, std::byte* target, int64_t count) {
  combine(sources, reduction, accumulator, target_type, std::span<std::byte* const>(&target, 1), count);
}

}  // namespace athanor
