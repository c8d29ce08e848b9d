// Cost and shape rules that rows of the operation table share. Internal to `ir`.
//
// A cost is that of one execution, a check says in words why the operands do not fit. Both may rely on the
// operand counts of the row and on required operands being present; `verify` sees to that first.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "athanor/ir/operation.h"

namespace athanor::rules {

using Types = std::span<const OperandType>;
using Problem = std::optional<std::string>;

Cost cost_none(const Attributes&, Types inputs, Types outputs);
Cost cost_elementwise(const Attributes&, Types inputs, Types outputs);  // bytes only; FLOPs by convention 0
Cost cost_embedding(const Attributes&, Types inputs, Types outputs);
Cost cost_embedding_gradient(const Attributes&, Types inputs, Types outputs);
Cost cost_matmul(const Attributes&, Types inputs, Types outputs);
Cost cost_matmul_input_gradient(const Attributes&, Types inputs, Types outputs);
Cost cost_matmul_weight_gradient(const Attributes&, Types inputs, Types outputs);
Cost cost_attention(const Attributes&, Types inputs,
                    Types outputs);  // masks of documents are not counted off
Cost cost_attention_gradient(const Attributes&, Types inputs, Types outputs);
Cost cost_cache_write(const Attributes&, Types inputs, Types outputs);
Cost cost_cached_attention(const Attributes&, Types inputs, Types outputs);  // as if the cache were full
Cost cost_last_token(const Attributes&, Types inputs, Types outputs);
Cost cost_update(const Attributes&, Types inputs, Types outputs);  // optimizers: state is read and written

Cost cost_attention_part(const Attributes&, Types inputs, Types outputs);  // of the visible share of the keys
Cost cost_attention_part_gradient(const Attributes&, Types inputs, Types outputs);
Cost cost_all_reduce(const Attributes&, Types inputs, Types outputs);
Cost cost_all_gather(const Attributes&, Types inputs, Types outputs);
Cost cost_reduce_scatter(const Attributes&, Types inputs, Types outputs);
Cost cost_all_to_all(const Attributes&, Types inputs, Types outputs);
Cost cost_shift(const Attributes&, Types inputs, Types outputs);
Cost cost_reduce_members(const Attributes&, Types inputs, Types outputs);

Problem check_none(const Attributes&, Types inputs, Types outputs);
Problem check_same(const Attributes&, Types inputs, Types outputs);  // all present operands have one shape
Problem check_embedding(const Attributes&, Types inputs, Types outputs);
Problem check_embedding_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_matmul(const Attributes&, Types inputs, Types outputs);
Problem check_matmul_input_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_matmul_weight_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_bias_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_norm(const Attributes&, Types inputs, Types outputs);
Problem check_norm_input_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_norm_weight_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_rotary(const Attributes&, Types inputs, Types outputs);
Problem check_attention(const Attributes&, Types inputs, Types outputs);
Problem check_attention_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_cache_write(const Attributes&, Types inputs, Types outputs);
Problem check_cached_attention(const Attributes&, Types inputs, Types outputs);
Problem check_last_token(const Attributes&, Types inputs, Types outputs);
Problem check_load_tokens(const Attributes&, Types inputs, Types outputs);
Problem check_dropout(const Attributes&, Types inputs, Types outputs);
Problem check_cross_entropy(const Attributes&, Types inputs, Types outputs);
Problem check_total(const Attributes&, Types inputs, Types outputs);  // one output of one element
Problem check_slice(const Attributes&, Types inputs, Types outputs);
Problem check_concat(const Attributes&, Types inputs, Types outputs);
Problem check_reshape(const Attributes&, Types inputs, Types outputs);
Problem check_load_batch(const Attributes&, Types inputs, Types outputs);
Problem check_norms(const Attributes&, Types inputs, Types outputs);
Problem check_clip(const Attributes&, Types inputs, Types outputs);
Problem check_update(const Attributes&, Types inputs, Types outputs);
Problem check_lamb_norms(const Attributes&, Types inputs, Types outputs);

Problem check_attention_part(const Attributes&, Types inputs, Types outputs);
Problem check_attention_part_gradient(const Attributes&, Types inputs, Types outputs);
Problem check_vocabulary_max(const Attributes&, Types inputs, Types outputs);
Problem check_vocabulary_sums(const Attributes&, Types inputs, Types outputs);
Problem check_vocabulary_loss(const Attributes&, Types inputs, Types outputs);
Problem check_local_part(const Attributes&, Types inputs, Types outputs);  // reduce_scatter too
Problem check_all_gather(const Attributes&, Types inputs, Types outputs);
Problem check_all_to_all(const Attributes&, Types inputs, Types outputs);
Problem check_shift(const Attributes&, Types inputs, Types outputs);
Problem check_reduce_members(const Attributes&, Types inputs, Types outputs);

}  // namespace athanor::rules
