#include "athanor/kernels/kernel.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

OperandType of(DType dtype) {
  return {.dtype = dtype, .shape = {1}, .present = true};
}

TEST(KeyDType, IsTheFirstFloatInputElseOutputElseAnything) {
  using Types = std::vector<OperandType>;
  OperandType absent = of(DType::fp64);
  absent.present = false;
  EXPECT_EQ(key_dtype(Types{of(DType::int32), of(DType::bf16), of(DType::fp32)}, Types{of(DType::fp64)}),
            DType::bf16);
  EXPECT_EQ(key_dtype(Types{absent, of(DType::fp16)}, Types{of(DType::fp64)}), DType::fp16);
  EXPECT_EQ(key_dtype(Types{of(DType::int32)}, Types{of(DType::int64), of(DType::fp64)}), DType::fp64);
  EXPECT_EQ(key_dtype(Types{of(DType::u8), of(DType::int32)}, Types{of(DType::int32)}), DType::u8);
  EXPECT_EQ(key_dtype(Types{}, Types{of(DType::int32)}), DType::int32);
  EXPECT_EQ(key_dtype(Types{}, Types{}), DType::fp32);
}

}  // namespace
}  // namespace athanor
