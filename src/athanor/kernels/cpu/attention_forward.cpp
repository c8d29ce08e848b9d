// The forward tile in fp32 arithmetic for every instruction set.
#include "athanor/kernels/cpu/attention_simd.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/attention_float-inl.h"
#include "athanor/kernels/cpu/attention_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void attention_forward_tile(const AttentionJob& job, int64_t tile, int thread) {
  forward_tile_of<FloatArithmetic>(job, tile, thread);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(attention_forward_tile);
AttentionTile simd_forward_tile() {
  return &HWY_DYNAMIC_DISPATCH(attention_forward_tile);
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
