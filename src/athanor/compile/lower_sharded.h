// Operations that become several when ranks share a dim. Internal to `compile`. Thread safety: one thread.
#pragma once

#include "athanor/compile/sharded_graph.h"

namespace athanor {

// Attention whose sequence is cut over `axis`: keys and values travel around the ring of ranks, each part's
// result is merged with what is there (Liu et al. 2023). The operands are local values, in the row's order;
// the outputs are defined by the caller.
void lower_ring_attention(ShardedGraph& sharded, Axis axis, const std::vector<ValueId>& inputs,
                          const std::vector<ValueId>& outputs, const Attributes& attributes, Part part);
// Its gradient: keys and values travel once more, and their gradients with them until they are home.
void lower_ring_attention_gradient(ShardedGraph& sharded, Axis axis, const std::vector<ValueId>& inputs,
                                   const std::vector<ValueId>& outputs, const Attributes& attributes,
                                   Part part);

// Cross entropy of logits whose vocabulary of `vocabulary` columns is cut over `axis`: the largest logit and
// the sums of each row are combined over the ranks. token_loss comes out the same on all of them.
void lower_vocabulary_loss(ShardedGraph& sharded, Axis axis, int64_t vocabulary,
                           const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
                           const Attributes& attributes, Part part);

}  // namespace athanor
