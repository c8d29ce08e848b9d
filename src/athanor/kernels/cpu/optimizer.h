// Optimizer steps over whole buckets of fp32 master weights, on the CPU: AdamW, SGD with momentum, LAMB.
//
// Called by the kernel table's adapters. One pass over memory (LAMB: two, the first of which writes nothing
// that lasts). Weight decay and the learning-rate factor of each parameter come from the member table, as the
// model declared them by role, never from a shape. Elements between members are left alone. If *skip is not 0
// nothing is written. Arithmetic is fp32 per element, norms are fp64. Thread safety: pure functions of their
// operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/bucket_tiles.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// What the three have in common. The gradient that counts is gradient * *clip_factor / loss_scale.
struct BucketUpdate {
  const float* gradient = nullptr;
  const double* clip_factor = nullptr;
  const double* skip = nullptr;
  float* master = nullptr;
  Span working{};            // optional: the new weights as fp32, bf16 or fp16
  float* average = nullptr;  // optional: average += (1 - average_decay) (new weight - average)
  double average_decay = 0;
  double learning_rate = 0;
  double loss_scale = 1;  // the gradient arrives multiplied by it
  double gradient_factor() const { return *clip_factor / loss_scale; }
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  int64_t step = 1;  // number of this update, from 1: for the bias correction
};

// AdamW (Loshchilov, Hutter 2019): w -= rate (m' / (sqrt(v') + epsilon) + decay w), decay decoupled from the
// moments, m' and v' corrected for bias.
void adamw(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, const AdamOptions& options,
           float* first_moment, float* second_moment);

// SGD with momentum: g = gradient + decay w (coupled), b = momentum b + g, w -= rate (nesterov ? g + momentum
// b : b). The buffer starts as zeros.
void sgd(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, double momentum,
         bool nesterov, float* momentum_buffer);

// LAMB (You et al. 2020): u = m' / (sqrt(v') + epsilon) + decay w; w -= rate ratio u with ratio = |w| / |u|
// of the parameter, held within [trust_low, trust_high] unless both are 0. The ratio is 1 for parameters
// without weight decay and where a norm is 0. First pass: norms[m] = |w|^2, norms[members + m] = |u|^2 of
// member m.
int64_t lamb_norms_workspace_bytes(int64_t elements, int64_t members);
void lamb_norms(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update,
                const AdamOptions& options, const float* first_moment, const float* second_moment,
                double* norms, std::byte* workspace);
void lamb(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, const AdamOptions& options,
          double trust_low, double trust_high, const double* norms, float* first_moment,
          float* second_moment);

}  // namespace athanor::cpu
