#include "athanor/train/peak.h"

#include <fmt/core.h>

#include "athanor/kernels/cpu/matrix_peak.h"
#include "athanor/machine/host.h"

namespace athanor {

MatrixPeak measure_peak(const RunOptions& options, int threads) {
  if (options.kernels != KernelSet::cpu || !options.measure_peak) return {};
  const Precision precision = options.compile.precision;
  const DType dtype = precision == Precision::bf16   ? DType::bf16
                      : precision == Precision::fp16 ? DType::fp16
                                                     : DType::fp32;
  ThreadTeam team(threads);
  return {cpu::matrix_peak_gflops(team, dtype),
          fmt::format("the best of several large {} products measured here with {} threads ({})",
                      name_of(dtype), threads, processor_name())};
}

}  // namespace athanor
