// Squared norms of the members of a bucket, and the clip factor made of them, on the CPU.
//
// Called by the kernel table's adapters. Thread safety: pure functions of their operands; bits do not depend
// on the team, nor on what other members share the bucket.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/bucket_tiles.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// norms[m] = sum of squares of member m of `gradient`, in fp64 (fp32 numbers square without overflow there,
// so a sum is finite exactly if all of its elements are), tile by tile in order.
int64_t squared_norms_workspace_bytes(int64_t elements, int64_t members);
void squared_norms(ThreadTeam& team, const BucketTiles& tiles, ConstSpan gradient, double* norms,
                   std::byte* workspace);

struct ClipLimits {
  double maximum_norm = 0;  // 0: none
  double loss_scale = 1;    // the gradient is multiplied by it
  // The update is skipped above these.
  double norm_limit = std::numeric_limits<double>::infinity();
  double mean_loss_limit = std::numeric_limits<double>::infinity();
};
struct Clip {
  double gradient_norm = 0;  // over all members, added in the order of `squares`, without the loss scale
  double factor = 1;         // min(1, maximum_norm / gradient_norm); 1 where maximum_norm is 0; 0 with skip
  bool skip = false;         // norm or loss are not finite, there is no valid token, or a limit is passed
};
// `loss` is the sum over the valid tokens.
Clip clip_of(std::span<const double> squares, double valid_tokens, double loss, const ClipLimits& limits);

}  // namespace athanor::cpu
