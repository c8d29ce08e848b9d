#include <gtest/gtest.h>

#include "athanor/program/test_programs.h"

namespace athanor {
namespace {

TEST(ProgramText, CallsOfMicroBatchesAndLayersAreFolded) {
  EXPECT_EQ(calls_text(TestProgram::make()),
            R"(program train: 2 micro-batches of 1 x 4 tokens, 13 calls of 8 templates, 2.304 kFLOP
templates
  load                           2 calls of   1 instructions,       0 FLOP,               88 bytes
  count                          2 calls of   1 instructions,       0 FLOP,               24 bytes
  forward                        2 calls of   1 instructions,       0 FLOP,              272 bytes
  head                           2 calls of   5 instructions,  1.152 kFLOP,            2,096 bytes
  backward                       2 calls of   1 instructions,       0 FLOP,              400 bytes
  norms                          1 calls of   1 instructions,       0 FLOP,              200 bytes
  clip                           1 calls of   1 instructions,       0 FLOP,                0 bytes
  optimizer                      1 calls of   1 instructions,       0 FLOP,            1,360 bytes
calls
        0-1  load                          micro-batches 0-1  on copy
          2  count                         micro-batch 0  overwrites  waits for 0
          3  count                         micro-batch 1  adds  waits for 1
          4  forward                       micro-batch 0
          5  head                          micro-batch 0  overwrites
          6  backward                      micro-batch 0  adds
          7  forward                       micro-batch 1
          8  head                          micro-batch 1  adds
          9  backward                      micro-batch 1  adds
         10  norms
         11  clip
         12  optimizer
)");
}

TEST(ProgramText, LayersFoldInTheirDirection) {
  StepProgram program = TestProgram::make();
  const Call forward = program.calls[4], backward = program.calls[6];
  program.calls.clear();
  for (int32_t layer = 0; layer < 5; ++layer) {
    program.calls.push_back(forward);
    program.calls.back().layer = layer;
  }
  for (int32_t layer = 5; layer-- > 0;) {
    program.calls.push_back(backward);
    program.calls.back().layer = layer;
  }
  const std::string text = calls_text(program);
  EXPECT_EQ(text.substr(text.find("calls\n")), R"(calls
        0-4  forward                       layers 0..4  micro-batch 0
        5-9  backward                      layers 4..0  micro-batch 0  adds
)");
}

TEST(ProgramText, MemoryListsClassesAndBuffers) {
  EXPECT_EQ(memory_text(TestProgram::make(), 1024),
            R"(memory of program train: 2 micro-batches of 1 x 4 tokens
  master weights                    192 bytes        0.0 MiB
  gradients                         192 bytes        0.0 MiB
  optimizer state                   384 bytes        0.0 MiB
  scalars                            48 bytes        0.0 MiB
  batch                              64 bytes        0.0 MiB
  residual                          256 bytes        0.0 MiB
  scratch                           740 bytes        0.0 MiB
  persistent arena                1,024 bytes        0.0 MiB
  transient arena                 2,816 bytes        0.0 MiB  peak in call 5 (head, micro-batch 0)
  total                           3,840 bytes        0.0 MiB
buffers
  master                           1 x                192 bytes  master weights
  gradients                        1 x                192 bytes  gradients
  first_moment                     1 x                192 bytes  optimizer state
  second_moment                    1 x                192 bytes  optimizer state
  valid_tokens                     1 x                  8 bytes  scalars
  loss                             1 x                  8 bytes  scalars
  gradient_norm                    1 x                  8 bytes  scalars
  clip_factor                      1 x                  8 bytes  scalars
  skip                             1 x                  8 bytes  scalars
  norms                            1 x                  8 bytes  scalars
  batch.token_ids.*                2 x                 16 bytes  batch
  batch.labels.*                   2 x                 16 bytes  batch
  batch.positions.*                2 x                 16 bytes  batch
  batch.documents.*                2 x                 16 bytes  batch
  batch.indices.*                  2 x                 16 bytes  batch
  batch.sample_ids.*               2 x                  8 bytes  batch
  residual.*                       2 x                128 bytes  residual
  scratch.*                        2 x                740 bytes  scratch
  d.residual.*                     2 x                128 bytes  residual
)");
}

TEST(ProgramText, TemplatesShowWhereValuesLie) {
  EXPECT_EQ(to_text(TestProgram::make().templates[3]),
            R"(template head: 5 instructions, 1.152 kFLOP, 2,096 bytes moved
  base residual: 128 bytes of residual
  base working: 192 bytes of working weights
  base batch.labels: 16 bytes of batch
  base valid_tokens: 8 bytes of scalars
  base scratch: 740 bytes of scratch
  base d.residual: 128 bytes of residual
  base gradients: 192 bytes of gradients
  base loss: 8 bytes of scalars
graph head {
  region 0 logits: rows=4 chunk_rows=3
  input %0 x: fp32 [1,4,8] residual @residual+0
  input %1 w: fp32 [6,8] parameter @working+0
  input %2 labels: int32 [1,4] batch @batch.labels+0
  input %3 valid_tokens: fp64 [1] scalar @valid_tokens+0
  loop 0 {
    %4 rows: fp32 [1,3,8] activation @residual+0 chunk 96 = chunk(%0) region=0 part=forward view
    %5 row_labels: int32 [1,3] batch @batch.labels+0 chunk 12 = chunk(%2) region=0 part=forward view
    %6 logits: fp32 [1,3,6] activation @scratch+192, - = matmul(%4, %1, -) part=forward workspace 100 @scratch+640
    %7 token_loss: fp32 [1,3] statistic @scratch+320, %8 dlogits: fp32 [1,3,6] activation_gradient @scratch+192 = cross_entropy(%6, %5, %3) part=forward
    %12 loss: fp64 [1] scalar @loss+0 = sum(%7) part=forward
    %9 drows: fp32 [1,3,8] activation_gradient @d.residual+0 chunk 96 = matmul_input_gradient(%8, %1, -) part=forward
    %11 dw: fp32 [6,8] parameter_gradient @gradients+0 = matmul_weight_gradient(%8, %4) part=forward
    %10 dx: fp32 [1,4,8] residual_gradient @d.residual+0 = collect(%9) region=0 part=forward view
  }
  output %10
  output %11
  output %12
}
)");
}

}  // namespace
}  // namespace athanor
