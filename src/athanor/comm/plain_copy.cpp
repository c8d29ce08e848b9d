#include "athanor/comm/plain_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// clang-format off: the first decides what the others declare.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/comm/plain_copy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace athanor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Writes whole lines at once, so that nobody reads first what is overwritten anyway.
void copy_past_cache(uint8_t* target, const uint8_t* source, size_t bytes) {
  constexpr size_t line = 64, lines = 4, ahead = 2048;
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t head = std::min((line - reinterpret_cast<uintptr_t>(target) % line) % line, bytes);
  std::memcpy(target, source, head);
  size_t i = head;
  for (; i + lines * line <= bytes; i += lines * line) {
    for (size_t j = 0; j < lines; ++j) __builtin_prefetch(source + i + ahead + j * line);
    for (size_t j = 0; j < lines * line; j += lanes)
      hn::Stream(hn::LoadU(d, source + i + j), d, target + i + j);
  }
  hwy::FlushStream();
  std::memcpy(target + i, source + i, bytes - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor {

HWY_EXPORT(copy_past_cache);

void plain_copy(std::byte* target, const std::byte* source, size_t bytes) {
  constexpr size_t least = 512 << 10;
  if (target == source) return;
  if (bytes < least) {
    std::memcpy(target, source, bytes);
    return;
  }
  const auto copy = HWY_DYNAMIC_DISPATCH(copy_past_cache);
  copy(reinterpret_cast<uint8_t*>(target), reinterpret_cast<const uint8_t*>(source), bytes);
}

}  // namespace athanor
#endif  // HWY_ONCE
