#include "athanor/kernels/cpu/attention_plan.h"
namespace athanor::cpu {
AttentionTile bf16_forward_tile() {
  return nullptr;
}
AttentionTile bf16_backward_tile() {
  return nullptr;
}
}  // namespace athanor::cpu
