// The operation table: every kind of operation, its operands, attributes and rules, one row each.
//
// Called by model (builds graphs), compile (autodiff, planning), kernels (implements the rows), simulate.
// Adding an operation is one enumerator, one row in operation_table.cpp, its rules, and kernels.
// Thread safety: constant data and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/ir/dtype.h"
#include "athanor/ir/placement.h"
#include "athanor/ir/shape.h"

namespace athanor {

// Operands of each row: in operation_table.cpp. Gradient kinds come right after their forward kind.
enum class OperationKind : uint8_t {
  embedding,
  embedding_gradient,
  matmul,
  matmul_input_gradient,
  matmul_weight_gradient,
  bias_gradient,
  layer_norm,
  layer_norm_input_gradient,
  layer_norm_weight_gradient,
  rms_norm,
  rms_norm_input_gradient,
  rms_norm_weight_gradient,
  gelu,
  gelu_gradient,
  swiglu,
  swiglu_gradient,
  rotary,
  attention,
  attention_gradient,
  cache_write,
  cached_attention,
  last_token,
  add,
  dropout,
  soft_cap,
  cross_entropy,
  count_valid,
  sum,
  cast,
  slice,    // view
  concat,   // view
  reshape,  // view
  chunk,    // view, in a region
  collect,  // view, in a region
  load_batch,
  load_tokens,
  squared_norms,
  clip,
  adamw,
  sgd,
  lamb_norms,
  lamb,
  // Of a model on several ranks: parts of operations whose operands are cut, and collectives.
  attention_part,
  attention_part_gradient,
  vocabulary_max,
  vocabulary_sums,
  vocabulary_loss,
  local_part,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  shift,
  reduce_members,
  reduce_scatter_bucket,
};
inline constexpr int operation_kind_count = static_cast<int>(OperationKind::reduce_scatter_bucket) + 1;

// What an operation is for: backward keeps the gradient that flows on (B) apart from weight gradients (W).
enum class Part : uint8_t { forward, input_gradient, weight_gradient, update };

enum class Activation : uint8_t { none, gelu };

// All attributes of all kinds in one flat struct; the row's mask says which ones a kind has.
struct Attributes {
  double epsilon = 1e-5;
  double scale = 1;        // attention: of the scores
  double probability = 0;  // dropout
  double theta = 10000;    // rotary
  double rope_factor = 1;  // rotary: Llama 3.1 scaling; 1 is none
  double rope_low = 1, rope_high = 4;
  int64_t rope_original = 8192;
  bool inverse = false;  // rotary: turn back (the gradient)
  int64_t window = 0;    // attention: keys visible to a query, itself included; 0 is all
  double label_smoothing = 0, z_loss = 0, soft_cap = 0;  // cross_entropy; soft_cap 0 is none
  int64_t offset = 0;                                    // slice: first element within the row
  int64_t region = -1;                                   // chunk, collect: index in Graph::regions
  int64_t table = -1;                                    // bucket operations: index in Graph::tables
  Activation activation = Activation::none;              // matmul
  double beta1 = 0.9, beta2 = 0.95, momentum = 0, maximum_norm = 0, average_decay = 0;
  double trust_low = 0, trust_high = 0;  // lamb: bounds of the trust ratio; 0, 0 is unbounded
  bool nesterov = false;
  Axis axis = Axis::pipeline;    // collectives, local_part: the axis whose ranks take part
  int32_t ranks = 1;             // its size
  Placement from = {}, to = {};  // what the tensor is along the axis before and after
  // Operations on a part of a cut dim (vocabulary; depth of a product; heads that key random numbers; a
  // bucket): its length in the whole. KernelArguments::first says where the part begins. 0: nothing is cut.
  int64_t extent = 0;
  std::string name = {};  // random operations: the logical name that keys them; "{layer}" is filled in
  friend bool operator==(const Attributes&, const Attributes&) = default;
};

enum class Field : uint8_t {
  epsilon,
  scale,
  probability,
  theta,
  rope_factor,
  rope_low,
  rope_high,
  rope_original,
  inverse,
  window,
  label_smoothing,
  z_loss,
  soft_cap,
  offset,
  region,
  table,
  activation,
  beta1,
  beta2,
  momentum,
  maximum_norm,
  average_decay,
  trust_low,
  trust_high,
  nesterov,
  axis,
  ranks,
  from,
  to,
  extent,
  name,
};
using FieldMask = uint64_t;
constexpr FieldMask mask_of(Field field) {
  return uint64_t{1} << static_cast<int>(field);
}

// FLOPs (a multiply-add is two), bytes that the operation reads and writes at least once, and bytes that a
// rank must send to others.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double sent = 0;
};

struct Operand {
  std::string_view name;
  bool optional = false;
};

// What a rule sees of an operand: null shape rank with present = false for an absent optional one.
struct OperandType {
  DType dtype = DType::fp32;
  Shape shape;
  bool present = false;
};

struct OperationRow {
  OperationKind kind;
  std::string_view name;
  std::vector<Operand> inputs, outputs;
  FieldMask fields = 0;
  bool is_view = false;          // no kernel: the memory plan makes outputs and inputs share storage
  bool variadic = false;         // the last input may repeat
  bool accumulates = false;      // adds to its outputs, except in the call that first writes them
  bool updates_outputs = false;  // outputs are read and written in place (optimizer state, cache)
  bool is_collective = false;    // no kernel: the ranks of an axis exchange data
  bool is_random = false;        // depends on seed and step through `name`
  // in_place[o] = i: output o may take the storage of input i when i dies here; -1 is no.
  std::vector<int8_t> in_place;
  // Cost of one execution with these operand types.
  Cost (*cost)(const Attributes&, std::span<const OperandType> inputs, std::span<const OperandType> outputs);
  // Why the operand shapes do not fit, or nothing.
  std::optional<std::string> (*check)(const Attributes&, std::span<const OperandType> inputs,
                                      std::span<const OperandType> outputs);
};

const OperationRow& row_of(OperationKind kind);
inline std::string_view name_of(OperationKind kind) {
  return row_of(kind).name;
}
std::optional<OperationKind> parse_operation_kind(std::string_view name);

// Prints "epsilon=1e-05 name=..." for the fields of `mask`; parse_attribute sets one from its printed form
// (false if the field is unknown or the text does not fit).
std::string to_text(const Attributes& attributes, FieldMask mask);
bool parse_attribute(std::string_view field, std::string_view value, Attributes& attributes);

// FLOPs of the visible part of causal attention of `tokens_per_sample` with a window (0: none): the number of
// visible (query, key) pairs of one sample and head.
int64_t visible_pairs(int64_t sequence_length, int64_t window);

}  // namespace athanor
