// Softmax cross entropy of rows of which each rank holds some columns: three phases, between which the ranks
// take the maximum and the sums of what each gave.
//
// Called by the kernel table's adapters, once per chunk of tokens. Types and accuracy as cross_entropy.h.
// Thread safety: pure functions of their operands; bits do not depend on the team.
//
// The columns [0, columns) of a row are columns [first, first + columns) of a vocabulary; those beyond it are
// padding: they count nowhere and their gradient is 0. c is the capped logit, as in cross_entropy.h.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/ir/step_inputs.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

struct VocabularyPart {
  int64_t rows = 0, columns = 0;  // stored
  int64_t first = 0, vocabulary = 0;
  ConstRows logits{};
  double soft_cap = 0;

  // Columns that are not padding.
  int64_t count() const { return std::clamp<int64_t>(vocabulary - first, 0, columns); }
};

// row_max [rows] = the largest c, -infinity without columns.
void vocabulary_max(ThreadTeam& team, const VocabularyPart& part, float* row_max);

// sums [rows, 3 of `stride`] = the sum of e^(c - row_max), the sum of c, c of the label or 0 where it is not
// here. row_max is that of all parts. Labels are checked before anything is written.
void vocabulary_sums(ThreadTeam& team, const VocabularyPart& part, const int32_t* labels,
                     const float* row_max, float* sums, int64_t stride);

// The loss of each row, the same for all parts, and this part of its gradient, of row_max and sums of all
// parts together.
struct VocabularyLoss {
  VocabularyPart part;
  const int32_t* labels = nullptr;
  const float* row_max = nullptr;
  const float* sums = nullptr;
  int64_t sums_stride = 3;
  const double* valid_tokens = nullptr;  // needed with dlogits
  double label_smoothing = 0, z_loss = 0, loss_scale = 1;
  float* loss = nullptr;
  Rows dlogits{};  // optional; may be the memory of the logits if type and stride are the same
};
void vocabulary_loss(ThreadTeam& team, const VocabularyLoss& arguments);

}  // namespace athanor::cpu
