// What the optimizers share: the walk over the members of a bucket, and the tail of every update.
//
// Used by optimizer.cpp and lamb.cpp. Thread safety: pure functions.
#pragma once

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

// Gradients arrive multiplied by the loss scale; this takes it off and clips.
inline double gradient_factor(const TensorView& clip_factor, const KernelContext& context) {
  return load(clip_factor, 0) / context.step->loss_scale;
}

inline bool skipped(const TensorView& skip) {
  return load(skip, 0) != 0;
}

// Calls body(member, index of the member, element) for every element of every member.
template <class Body>
void for_elements(const BucketTable& table, Body body) {
  for (size_t m = 0; m < table.members.size(); ++m) {
    const BucketMember& member = table.members[m];
    for (int64_t i = 0; i < member.length(); ++i) body(member, static_cast<int64_t>(m), member.offset + i);
  }
}

// Writes the new weight, its working copy and the running average of weights, where these are kept.
inline void store_weight(const TensorView& master, const TensorView& working, const TensorView& average,
                         double average_decay, int64_t element, double weight) {
  store(master, element, weight);
  if (working.present()) store(working, element, weight);
  if (average.present()) {
    store(average, element, average_decay * load(average, element) + (1 - average_decay) * weight);
  }
}

}  // namespace athanor::reference
