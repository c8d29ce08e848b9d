#include <array>
#include <cmath>
#include <string>

#include "athanor/base/error.h"
#include "athanor/ir/operation.h"
#include "athanor/ir/operation_rules.h"

namespace athanor {

namespace {

using enum Field;

template <class... Fields>
constexpr FieldMask fields(Fields... list) {
  return (mask_of(list) | ... | FieldMask{0});
}

// "x weight bias?" -> operands; a question mark makes one optional.
std::vector<Operand> operands(std::string_view text) {
  std::vector<Operand> list;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool optional = word.back() == '?';
    if (optional) word.remove_suffix(1);
    list.push_back({word, optional});
  }
  return list;
}

OperationRow row(OperationKind kind, std::string_view name, std::string_view inputs, std::string_view outputs,
                 FieldMask mask, decltype(OperationRow::cost) cost, decltype(OperationRow::check) check) {
  OperationRow result{.kind = kind,
                      .name = name,
                      .inputs = operands(inputs),
                      .outputs = operands(outputs),
                      .fields = mask,
                      .in_place = {},
                      .cost = cost,
                      .check = check};
  result.in_place.assign(result.outputs.size(), -1);
  return result;
}

OperationRow with_in_place(OperationRow base, std::vector<int8_t> in_place) {
  base.in_place = std::move(in_place);
  return base;
}
OperationRow accumulating(OperationRow base) {
  base.accumulates = true;
  return base;
}
OperationRow view(OperationRow base) {
  base.is_view = true;
  return base;
}
OperationRow updating(OperationRow base) {
  base.updates_outputs = true;
  return base;
}
OperationRow random(OperationRow base) {
  base.is_random = true;
  return base;
}
OperationRow collective(OperationRow base) {
  base.is_collective = true;
  return base;
}
OperationRow variadic(OperationRow base) {
  base.variadic = true;
  return base;
}

// Parts of operations whose operands are cut, and collectives.
void add_sharded_rows(std::vector<OperationRow>& rows) {
  using enum OperationKind;
  using namespace rules;
  const FieldMask attend = fields(scale, window, probability, ranks, extent, Field::name);
  const FieldMask loss = fields(label_smoothing, z_loss, Field::soft_cap, extent);
  const auto add_row = [&](OperationRow r) { rows.push_back(std::move(r)); };
  // Attention of q [B,S,H,E] to one part k, v [B,T,K,E] of the keys, merged with what earlier parts gave:
  // out, logsumexp are those of all parts so far. key_positions, key_documents, key_indices [B,T]
  add_row(random(row(attention_part, "attention_part",
                     "q k v positions documents key_positions key_documents out_before? logsumexp_before? "
                     "indices? key_indices? sample_ids?",
                     "out logsumexp", attend, cost_attention_part, check_attention_part)));
  // Its gradient, with out and logsumexp of all parts; what other parts gave is added
  add_row(random(row(attention_part_gradient, "attention_part_gradient",
                     "dout q k v out logsumexp positions documents key_positions key_documents dq_before? "
                     "dk_before? dv_before? indices? key_indices? sample_ids?",
                     "dq dk dv", attend, cost_attention_part_gradient, check_attention_part_gradient)));
  // Cross entropy of logits [B,S,V/n], a part of a vocabulary of `extent`, in three phases. Columns beyond
  // the extent do not count. First the largest capped logit: row_max [B,S], to be reduced by max
  add_row(row(vocabulary_max, "vocabulary_max", "logits", "row_max", fields(Field::soft_cap, extent),
              cost_elementwise, check_vocabulary_max));
  // then with the largest of all parts: sums [B,S,3] of exp(capped logit - row_max), of the capped logits,
  // and the label's capped logit or 0; to be reduced by sum
  add_row(row(vocabulary_sums, "vocabulary_sums", "logits labels row_max", "sums",
              fields(Field::soft_cap, extent), cost_elementwise, check_vocabulary_sums));
  // then, of the totals: token_loss [B,S] and this part of dlogits, as cross_entropy
  add_row(with_in_place(row(vocabulary_loss, "vocabulary_loss", "logits labels row_max sums valid_tokens?",
                            "token_loss dlogits?", loss, cost_elementwise, check_vocabulary_loss),
                        {-1, 0}));
  // x, the same on all ranks of the axis -> y: the part of it that `to` gives to this rank
  const FieldMask who = fields(axis, ranks);
  add_row(
      row(local_part, "local_part", "x", "y", who | mask_of(Field::to), cost_elementwise, check_local_part));
  // x, partial -> y: the sum or maximum over the axis; or over the neighbours that hold repeats of one part
  add_row(collective(with_in_place(
      row(all_reduce, "all_reduce", "x", "y", who | mask_of(Field::from), cost_all_reduce, check_same),
      {0})));
  // x: this rank's part by `from` -> y: the whole, without padding
  add_row(collective(row(all_gather, "all_gather", "x", "y", who | mask_of(Field::from), cost_all_gather,
                         check_all_gather)));
  // x, partial sums -> y: this rank's part by `to` of their sum
  add_row(collective(row(reduce_scatter, "reduce_scatter", "x", "y", who | mask_of(Field::to),
                         cost_reduce_scatter, check_local_part)));
  // x: this rank's part by `from` -> y: its part by `to` of the same whole
  add_row(collective(
      row(all_to_all, "all_to_all", "x", "y", who | fields(from, to), cost_all_to_all, check_all_to_all)));
  // y on rank i of the axis = x of rank i - 1, the first after the last; several tensors travel together
  add_row(collective(row(shift, "shift", "a b? c? d? e?", "next_a next_b? next_c? next_d? next_e?", who,
                         cost_shift, check_shift)));
  // Elements [offset, offset + extent) of a bucket, partial among all ranks of the axis or among the
  // neighbours that repeat a part, are replaced by their sums
  add_row(collective(
      updating(row(reduce_members, "reduce_members", "", "bucket", who | fields(from, Field::offset, extent),
                   cost_reduce_members, check_reduce_members))));
  // x [N], a bucket, partial sums -> y: this rank's part by `to` of their sum, added to what it has of
  // earlier micro-batches
  add_row(collective(accumulating(row(reduce_scatter_bucket, "reduce_scatter_bucket", "x", "y",
                                      who | mask_of(Field::to), cost_reduce_scatter, check_local_part))));
}

// Operands of each kind. Shapes in the legend of shape.h; `..` is any leading dims.
std::vector<OperationRow> make_table() {
  using enum OperationKind;
  using namespace rules;
  const FieldMask norm_fields = fields(epsilon);
  const FieldMask rope = fields(theta, rope_factor, rope_low, rope_high, rope_original, inverse);
  const FieldMask attend = fields(scale, window, probability, extent, name);
  const FieldMask average = fields(average_decay, Field::table, extent);
  std::vector<OperationRow> rows;
  const auto add_row = [&](OperationRow r) { rows.push_back(std::move(r)); };
  // table [V,D], ids [B,S] int32 -> y [B,S,D]; of a part of the table: zeros where another part has the row
  add_row(row(embedding, "embedding", "table ids", "y", fields(extent), cost_embedding, check_embedding));
  // dy [B,S,D], ids [B,S] -> dtable [V,D]
  add_row(accumulating(row(embedding_gradient, "embedding_gradient", "dy ids", "dtable", fields(extent),
                           cost_embedding_gradient, check_embedding_gradient)));
  // x [..,K], weight [N,K], bias [N] -> y [..,N] = x weight^T + bias, activated = activation(y). Of a part of
  // the depth K, the part that begins at 0 adds the bias.
  add_row(row(matmul, "matmul", "x weight bias?", "y activated?", fields(activation, extent), cost_matmul,
              check_matmul));
  // dy [..,N], weight [N,K], addend [..,K] -> dx [..,K] = dy weight (+ addend)
  add_row(row(matmul_input_gradient, "matmul_input_gradient", "dy weight addend?", "dx", 0,
              cost_matmul_input_gradient, check_matmul_input_gradient));
  // dy [..,N], x [..,K] -> dweight [N,K] += dy^T x
  add_row(accumulating(row(matmul_weight_gradient, "matmul_weight_gradient", "dy x", "dweight", 0,
                           cost_matmul_weight_gradient, check_matmul_weight_gradient)));
  // dy [..,N] -> dbias [N]: column sums
  add_row(accumulating(
      row(bias_gradient, "bias_gradient", "dy", "dbias", 0, cost_elementwise, check_bias_gradient)));
  // x, addend [B,S,D], weight, bias [D] -> total = x + addend, y = norm(total as stored), mean, rstd [B,S]:
  // the same bits as an add followed by the norm of its result
  add_row(with_in_place(row(layer_norm, "layer_norm", "x weight bias? addend?", "y mean rstd total?",
                            norm_fields, cost_elementwise, check_norm),
                        {-1, -1, -1, 0}));
  // dx = gradient through the norm (+ residual_gradient)
  add_row(with_in_place(
      row(layer_norm_input_gradient, "layer_norm_input_gradient", "dy x weight mean rstd residual_gradient?",
          "dx", 0, cost_elementwise, check_norm_input_gradient),
      {5}));
  add_row(accumulating(row(layer_norm_weight_gradient, "layer_norm_weight_gradient", "dy x mean rstd",
                           "dweight dbias?", 0, cost_elementwise, check_norm_weight_gradient)));
  // x [B,S,D] with weight [D], or x [B,S,H,E] with weight [E]: statistics over the last dim
  add_row(with_in_place(row(rms_norm, "rms_norm", "x weight addend?", "y rstd total?", norm_fields,
                            cost_elementwise, check_norm),
                        {-1, -1, 0}));
  add_row(with_in_place(
      row(rms_norm_input_gradient, "rms_norm_input_gradient", "dy x weight rstd residual_gradient?", "dx", 0,
          cost_elementwise, check_norm_input_gradient),
      {4}));
  add_row(accumulating(row(rms_norm_weight_gradient, "rms_norm_weight_gradient", "dy x rstd", "dweight", 0,
                           cost_elementwise, check_norm_weight_gradient)));
  // gelu with the tanh approximation
  add_row(row(gelu, "gelu", "x", "y", 0, cost_elementwise, check_same));
  add_row(
      with_in_place(row(gelu_gradient, "gelu_gradient", "dy x", "dx", 0, cost_elementwise, check_same), {0}));
  // y = gate * sigmoid(gate) * up
  add_row(row(swiglu, "swiglu", "gate up", "y", 0, cost_elementwise, check_same));
  add_row(
      row(swiglu_gradient, "swiglu_gradient", "dy gate up", "dgate dup", 0, cost_elementwise, check_same));
  // x [B,S,H,E], positions [B,S]: halves i and i + E/2 turn by positions * frequency(i)
  add_row(
      with_in_place(row(rotary, "rotary", "x positions", "y", rope, cost_elementwise, check_rotary), {0}));
  // q [B,S,H,E], k, v [B,S,K,E], positions, documents, indices [B,S], sample_ids [B]
  //   -> out [B,S,H,E], logsumexp [B,S,H]
  add_row(random(row(attention, "attention", "q k v positions documents indices? sample_ids?",
                     "out logsumexp", attend, cost_attention, check_attention)));
  add_row(random(row(attention_gradient, "attention_gradient",
                     "dout q k v out logsumexp positions documents indices? sample_ids?", "dq dk dv", attend,
                     cost_attention_gradient, check_attention_gradient)));
  // k, v [B,S,K,E], positions [B,S], lengths, cache_rows [B] -> key_cache, value_cache [R,K,C,E]: token s of
  // sample b goes to row cache_rows[b], slot positions[b,s] % C, for s < lengths[b]; the rest stays
  add_row(updating(row(cache_write, "cache_write", "k v positions lengths cache_rows",
                       "key_cache value_cache", 0, cost_cache_write, check_cache_write)));
  // q, out [B,S,H,E]: attention of a query at position p to positions p - window + 1 .. p (0: 0 .. p) of its
  // cache row, whose slots must still hold them; 0 for s >= lengths[b]. The cost is that of a full cache.
  add_row(row(cached_attention, "cached_attention", "q key_cache value_cache positions lengths cache_rows",
              "out", fields(scale, window), cost_cached_attention, check_cached_attention));
  // x [B,S,..] -> y [B,1,..]: token lengths[b] - 1 of each sample, or zeros where lengths[b] is 0
  add_row(row(last_token, "last_token", "x lengths", "y", 0, cost_last_token, check_last_token));
  add_row(with_in_place(row(OperationKind::add, "add", "a b", "y", 0, cost_elementwise, check_same), {0}));
  // y = (addend +) x * mask / (1 - probability); the gradient with respect to x is the same operation on dy
  add_row(with_in_place(random(row(dropout, "dropout", "x sample_ids indices addend?", "y",
                                   fields(probability, Field::name), cost_elementwise, check_dropout)),
                        {0}));
  // y = soft_cap * tanh(x / soft_cap)
  add_row(with_in_place(row(OperationKind::soft_cap, "soft_cap", "x", "y", fields(Field::soft_cap),
                            cost_elementwise, check_same),
                        {0}));
  // logits [B,S,V], labels [B,S], valid_tokens [1] fp64 -> token_loss [B,S],
  //   dlogits [B,S,V] = loss_scale / valid_tokens * d(sum of token_loss) / d(logits); ignored labels give
  //   zeros
  add_row(with_in_place(
      row(cross_entropy, "cross_entropy", "logits labels valid_tokens?", "token_loss dlogits?",
          fields(label_smoothing, z_loss, Field::soft_cap), cost_elementwise, check_cross_entropy),
      {-1, 0}));
  // labels [B,S] -> valid_tokens [1] fp64 += number of labels that are not ignored
  add_row(accumulating(
      row(count_valid, "count_valid", "labels", "valid_tokens", 0, cost_elementwise, check_total)));
  // x -> total [1] fp64 += sum of x
  add_row(accumulating(row(sum, "sum", "x", "total", 0, cost_elementwise, check_total)));
  add_row(row(cast, "cast", "x", "y", 0, cost_elementwise, check_same));
  // x [B,S,N] -> y [B,S,..]: elements [offset, offset + elements_per_token(y)) of each token's row
  add_row(view(row(slice, "slice", "x", "y", fields(Field::offset), cost_none, check_slice)));
  // inputs [B,S,..] side by side in each token's row -> y [B,S,N]
  add_row(view(variadic(row(concat, "concat", "x", "y", 0, cost_none, check_concat))));
  add_row(view(row(reshape, "reshape", "x", "y", 0, cost_none, check_reshape)));
  // x [B,S,..] -> y [1,C,..]: the rows of this iteration
  add_row(view(row(chunk, "chunk", "x", "y", fields(Field::region), cost_none, check_none)));
  // x [1,C,..] -> y [B,S,..]: where this iteration's rows go
  add_row(view(row(collect, "collect", "x", "y", fields(Field::region), cost_none, check_none)));
  // the call's micro-batch of StepInputs -> device
  add_row(row(load_batch, "load_batch", "", "token_ids labels positions documents indices sample_ids", 0,
              cost_elementwise, check_load_batch));
  // the same for a program with a cache: [B,S], [B,S], [B], [B]
  add_row(row(load_tokens, "load_tokens", "", "token_ids positions lengths cache_rows", 0, cost_elementwise,
              check_load_tokens));
  // gradient bucket [n] -> norms [members] fp64: sum of squares of each member, over what this rank owns
  add_row(row(squared_norms, "squared_norms", "gradient", "norms", fields(Field::table, extent),
              cost_elementwise, check_norms));
  // norms [all members], valid_tokens [1] -> gradient_norm [1], clip_factor [1] = min(1, maximum_norm / norm)
  // (1 when maximum_norm is 0), skip [1] = 1 when the norm is not finite or there is no valid token; all
  // fp64. The commit point: before it nothing persistent is written.
  add_row(row(clip, "clip", "norms valid_tokens loss", "gradient_norm clip_factor skip", fields(maximum_norm),
              cost_none, check_clip));
  // whole buckets [n], members from the table; working and average are written when present
  add_row(updating(row(adamw, "adamw", "gradient clip_factor skip",
                       "master first_moment second_moment working? average?",
                       fields(beta1, beta2, epsilon) | average, cost_update, check_update)));
  add_row(updating(row(sgd, "sgd", "gradient clip_factor skip", "master momentum_buffer working? average?",
                       fields(momentum, nesterov) | average, cost_update, check_update)));
  // -> norms [2 * members] fp64: squared norms of the weight and of the update, nothing persistent written
  add_row(row(lamb_norms, "lamb_norms", "gradient clip_factor skip master first_moment second_moment",
              "norms", fields(beta1, beta2, epsilon, Field::table, extent), cost_elementwise,
              check_lamb_norms));
  add_row(updating(row(
      lamb, "lamb", "gradient clip_factor skip norms", "master first_moment second_moment working? average?",
      fields(beta1, beta2, epsilon, trust_low, trust_high) | average, cost_update, check_update)));
  add_sharded_rows(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    ATHANOR_ASSERT(static_cast<size_t>(rows[i].kind) == i, "row {} out of order", rows[i].name);
  }
  ATHANOR_ASSERT(rows.size() == operation_kind_count);
  return rows;
}

}  // namespace

const OperationRow& row_of(OperationKind kind) {
  static const std::vector<OperationRow> table = make_table();
  return table.at(static_cast<size_t>(kind));
}

std::optional<OperationKind> parse_operation_kind(std::string_view name) {
  for (int i = 0; i < operation_kind_count; ++i) {
    if (row_of(static_cast<OperationKind>(i)).name == name) return static_cast<OperationKind>(i);
  }
  return std::nullopt;
}

}  // namespace athanor
