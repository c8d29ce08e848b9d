// The matrix-product peak of this machine, measured: what utilisation is a share of.
//
// Called by benchmarks and by the training loop before a run. Takes about a second and some hundred MB of its
// own memory. Thread safety: uses the team it is given.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/ir/dtype.h"

namespace athanor::cpu {

// 1e9 FLOP/s of the best of several large products of operands of type `dtype` (fp32, bf16, fp16) with every
// thread of the team busy: products of this program in each of their forms, and products by oneDNN of one
// matrix for each thread. `side` is the least dim of the matrices.
double matrix_peak_gflops(ThreadTeam& team, DType dtype, int64_t side = 1024);

}  // namespace athanor::cpu
