#include "athanor/kernels/cpu/memory_peak.h"

#include <atomic>
#include <chrono>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/memory_peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// Exclusive or of all words of `streams` runs of `bytes` each, read side by side; bytes a multiple of 256.
uint32_t read_streams(const std::byte* from, int64_t bytes, int64_t streams) {
  const hn::RebindToUnsigned<FloatTag> words;
  auto first = hn::Zero(words), second = first, third = first, fourth = first;
  const auto at = [&](const std::byte* place)
                      HWY_ATTR { return hn::LoadU(words, reinterpret_cast<const uint32_t*>(place)); };
  constexpr int64_t step = float_lanes * 4;
  for (int64_t i = 0; i < bytes; i += 4 * step) {
    for (int64_t s = 0; s < streams; ++s) {
      const std::byte* place = from + s * bytes + i;
      __builtin_prefetch(place + 1024);
      first = hn::Xor(first, at(place));
      second = hn::Xor(second, at(place + step));
      third = hn::Xor(third, at(place + 2 * step));
      fourth = hn::Xor(fourth, at(place + 3 * step));
    }
  }
  HWY_ALIGN uint32_t lanes[static_cast<size_t>(float_lanes)];
  hn::Store(hn::Xor(hn::Xor(first, second), hn::Xor(third, fourth)), words, lanes);
  uint32_t result = 0;
  for (const uint32_t lane : lanes) result ^= lane;
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(read_streams);

double read_bandwidth(ThreadTeam& team, std::span<const std::byte> buffer) {
  constexpr int64_t piece = 256 * 1024;
  const int64_t pieces = static_cast<int64_t>(buffer.size()) / piece;
  double best = 0;
  std::atomic<uint32_t> sink{0};  // so that the reads are not left out
  for (int pass = 0; pass < 4; ++pass) {
    const int64_t streams = pass % 2 == 0 ? 1 : 4;
    const auto begin = std::chrono::steady_clock::now();
    team.parallel_for(pieces, [&](int64_t index, int) {
      sink.fetch_xor(
          HWY_DYNAMIC_DISPATCH(read_streams)(buffer.data() + index * piece, piece / streams, streams),
          std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, static_cast<double>(pieces * piece) / seconds);
  }
  return best;
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
