#include "athanor/train/peak.h"

#include <fmt/core.h>

#include "athanor/kernels/cpu/matrix_peak.h"

namespace athanor {

MatrixPeak measure_peak(const RunOptions& options, int threads) {
  DType dtype = DType::fp32;
  if (options.compile.precision == Precision::bf16) dtype = DType::bf16;
  if (options.compile.precision == Precision::fp16) dtype = DType::fp16;
  if (options.kernels != KernelSet::cpu || options.compile.precision == Precision::fp64) return {};
  ThreadTeam team(threads);
  return {cpu::matrix_peak_gflops(team, dtype),
          fmt::format("measured, {} products on {} threads", name_of(dtype), threads)};
}

}  // namespace athanor
