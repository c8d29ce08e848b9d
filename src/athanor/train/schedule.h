// Learning rate and batch size as pure functions of consumed samples: resuming anywhere gives the same
// values.
//
// Called by the training loop and by `athanor show`. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "athanor/train/options.h"

namespace athanor {

// The rate of the step of `batch` samples that starts after `consumed` of `total`. Never negative, never
// above the peak (minimum_rate must not be above it). Linear warm-up from rate x batch / warmup_samples
// upwards; cosine as in Loshchilov and Hutter 2017 without restarts; warmup_stable_decay: constant, then
// linear over the last decay_samples (Hu et al. 2024).
double learning_rate(const ScheduleOptions& options, int64_t consumed, int64_t batch, int64_t total);

// Below, `micro_batch` is what all ranks compute at once: RunOptions::samples_at_once().

// Samples of the step that starts after `consumed` samples: a multiple of the micro-batch. With a ramp from f
// to b in steps of s, the n = (b - f) / s parts of ramp_samples have the batches f, f + s, ...; after them it
// is b.
int64_t batch_size(const BatchSizeOptions& options, int64_t micro_batch, int64_t consumed);

// Refuses batch sizes that the micro-batches (of one rank each) of a mesh do not divide, with the arithmetic
// and the nearest that would do.
void validate_batch(const BatchSizeOptions& options, int64_t micro_batch, const Mesh& mesh = {});

// All numbers of micro-batches that batch_size can ask for, ascending.
std::vector<int32_t> micro_batch_counts(const BatchSizeOptions& options, int64_t micro_batch);

// Consumed samples after `steps` steps from the start; a user error when they are beyond 64 bits.
int64_t samples_after(const BatchSizeOptions& options, int64_t micro_batch, int64_t steps);

}  // namespace athanor
