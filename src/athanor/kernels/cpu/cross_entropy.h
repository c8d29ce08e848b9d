// Softmax cross entropy over rows of logits, loss and gradient in one call, on the CPU.
//
// Called by the kernel table's adapters, once per chunk of tokens. Logits are fp32, bf16 or fp16; statistics
// fp32 with fp64 sums over blocks. Thread safety: pure functions of their operands; bits do not depend on the
// team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/ir/step_inputs.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// With c = soft_cap * tanh(logits / soft_cap) (c = logits where soft_cap is 0) and L = logsumexp(c), the loss
// of a row is (1 - smoothing) (L - c[label]) + smoothing (L - mean(c)) + z_loss L^2, and 0 where the label is
// ignored_label. Losses are not divided by anything. dlogits = loss_scale / N * d loss / d logits, N =
// *valid_tokens, the number of valid tokens of the whole step: zeros in ignored rows and everywhere if N is
// 0. dlogits (optional) may be the memory of logits if type and stride are the same. A label outside [0,
// vocabulary) that is not ignored_label is refused with an Error before anything is written.
struct CrossEntropy {
  int64_t rows = 0, vocabulary = 0;
  ConstRows logits{};
  const int32_t* labels = nullptr;       // [rows]
  const double* valid_tokens = nullptr;  // needed with dlogits
  double label_smoothing = 0, z_loss = 0, soft_cap = 0, loss_scale = 1;
  float* loss = nullptr;  // [rows]
  Rows dlogits{};
};
void cross_entropy(ThreadTeam& team, const CrossEntropy& arguments);

// Refuses a label outside [0, vocabulary) that is not ignored_label with an Error.
void check_labels(const int32_t* labels, int64_t count, int64_t vocabulary);

// Number of labels that are not ignored_label.
double count_valid_tokens(const int32_t* labels, int64_t count);

}  // namespace athanor::cpu
