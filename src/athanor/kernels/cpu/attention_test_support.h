// Forward and backward attention over tensors of tests.
//
// Included by `attention*_test.cpp` only. Thread safety: one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "athanor/kernels/cpu/attention.h"
#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu::testing {

struct AttentionTensors {
  Tensor q, k, v, dout;
  Tensor out, logsumexp, dq, dk, dv;  // of their shapes; computed
};

struct ComputedBlocks {
  int64_t forward = 0, backward = 0;
};

inline ComputedBlocks forward_and_backward(const AttentionShape& shape, const AttentionOptions& options,
                                           const AttentionTokens& query_tokens,
                                           const AttentionTokens& key_tokens, AttentionTensors& tensors,
                                           ThreadTeam& team) {
  std::atomic<int64_t> forward_blocks = 0, backward_blocks = 0;
  AttentionForward forward;
  forward.shape = shape;
  forward.options = options;
  forward.options.computed_blocks = &forward_blocks;
  forward.query_tokens = query_tokens;
  forward.key_tokens = key_tokens;
  forward.q = std::as_const(tensors.q).view();
  forward.k = std::as_const(tensors.k).view();
  forward.v = std::as_const(tensors.v).view();
  forward.out = tensors.out.view();
  forward.logsumexp = tensors.logsumexp.view();
  attention_forward(
      forward, team,
      scratch_of(attention_workspace_bytes(shape, AttentionDirection::forward, team.size())).data());
  AttentionBackward backward;
  backward.shape = shape;
  backward.options = options;
  backward.options.computed_blocks = &backward_blocks;
  backward.query_tokens = query_tokens;
  backward.key_tokens = key_tokens;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.out = std::as_const(tensors.out).view();
  backward.dout = std::as_const(tensors.dout).view();
  backward.logsumexp = std::as_const(tensors.logsumexp).view();
  backward.dq = tensors.dq.view();
  backward.dk = tensors.dk.view();
  backward.dv = tensors.dv.view();
  attention_backward(
      backward, team,
      scratch_of(attention_workspace_bytes(shape, AttentionDirection::backward, team.size())).data());
  return {forward_blocks, backward_blocks};
}

}  // namespace athanor::cpu::testing
