// The peak that MFU is measured against: the best of several large matrix products on this machine, now.
//
// Called at the start of a run and by benchmarks. Thread safety: one thread.
#pragma once

#include <string>

#include "athanor/train/options.h"

namespace athanor {

struct MatrixPeak {
  double gflops = 0;   // 0: not known
  std::string source;  // where the number is from
};

// Takes about a second. For the reference kernels, and without run.measure_peak, there is none.
MatrixPeak measure_peak(const RunOptions& options, int threads);

}  // namespace athanor
