#include "athanor/kernels/cpu/matrix_peak.h"

#include <gtest/gtest.h>

#include <cmath>

namespace athanor::cpu {
namespace {

TEST(MatrixPeak, IsMeasuredForEveryType) {
  for (const int threads : {1, 2}) {
    ThreadTeam team(threads);
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const double gflops = matrix_peak_gflops(team, dtype, 64);
      EXPECT_TRUE(std::isfinite(gflops));
      EXPECT_GT(gflops, 0.01);  // whatever the machine and its load
      EXPECT_LT(gflops, 1e7);
    }
  }
}

}  // namespace
}  // namespace athanor::cpu
