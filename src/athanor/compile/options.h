// What the compiler is told besides the model.
//
// Filled by train from the options table. Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "athanor/ir/graph.h"
#include "athanor/model/layout.h"

namespace athanor {

// Which types the parts of a model have: fp64 and fp32 throughout, or 16-bit compute and working weights with
// fp32 master weights, accumulators, statistics, gradients and reductions.
enum class Precision : uint8_t { fp64, fp32, bf16, fp16 };

enum class Recompute : uint8_t {
  none,       // everything backward reads is kept
  selective,  // cheap operations (norms, activations, dropout, rotary) run again in backward
  full,       // only the block's input is kept
};

enum class OptimizerKind : uint8_t { adamw, sgd, lamb };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double trust_low = 0, trust_high = 0;  // LAMB
  double maximum_norm = 1.0;             // gradient clipping; 0: off
  double average_decay = 0;              // weight averaging (EMA); 0: off
  // By declared role, never by shape.
  double weight_decay = 0.1;
  bool decay_embeddings = true, decay_norms = false, decay_biases = false;
  double matrix_rate = 1, embedding_rate = 1, norm_rate = 1, bias_rate = 1;  // learning-rate factors
};

// What a backend can do, so that compile need not know kernels.
struct Backend {
  std::string name;
  std::function<bool(OperationKind, DType)> supports;
  // Scratch bytes of one operation with these operands.
  std::function<int64_t(const Operation&, std::span<const OperandType>, std::span<const OperandType>)>
      workspace_bytes;
};

struct CompileOptions {
  Precision precision = Precision::fp32;
  DType residual = DType::fp32;  // of the residual stream with 16-bit compute
  Recompute recompute = Recompute::none;
  int64_t head_chunk_tokens = 0;  // tokens whose logits exist at once; 0: chosen by size
  OptimizerOptions optimizer;
  LayoutOptions layout;  // the mesh of ranks; all of it 1: one rank
  // What the ranks of axis `shard` keep a part of instead of the whole (Rajbhandari et al. 2020): 0 nothing,
  // 1 master weights and optimizer state, 2 reduced gradients too, 3 working weights too.
  int32_t zero_stage = 0;
  int32_t gather_window = 2;  // buckets whose weights are gathered, or whose gradients are reduced, at once
  DType gradient_wire = DType::fp32;  // contributions to gradients on their way between ranks
};

}  // namespace athanor
