// Embedding lookup and its gradient on the CPU.
//
// Called by the kernel table's adapters. Ids outside the table are refused with an Error before anything is
// written. Thread safety: pure functions of their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// y[t] = table[ids[t]]; table [vocabulary, features], fp32, bf16 or fp16 both. Of a part of the table, rows
// [first, first + rows) are here, and y of other ids is zero.
struct Embedding {
  int64_t tokens = 0, vocabulary = 0, features = 0;
  int64_t first = 0, rows = 0;
  ConstRows table{};
  const int32_t* ids = nullptr;
  Rows y{};
};
void embedding(ThreadTeam& team, const Embedding& arguments);

// dtable[i] (+)= sum of dy[t] over the tokens with ids[t] == i, in the order of the tokens, in fp32; rows of
// other ids become zero unless `accumulate`. Tokens are sorted by id, so no two threads meet in a row. Of a
// part of the table, row i is that of id first + i.
struct EmbeddingGradient {
  int64_t tokens = 0, vocabulary = 0, features = 0;
  int64_t first = 0, rows = 0;
  ConstRows dy{};
  const int32_t* ids = nullptr;
  float* dtable = nullptr;  // [rows, features]
  bool accumulate = false;
};
int64_t embedding_gradient_workspace_bytes(int64_t tokens);
void embedding_gradient(ThreadTeam& team, const EmbeddingGradient& arguments, std::byte* workspace);

}  // namespace athanor::cpu
