#include <gtest/gtest.h>

#include "athanor/compile/compile.h"

namespace athanor {
namespace {

Backend any_backend() {
  return {"any", [](OperationKind, DType) { return true; },
          [](const Operation&, std::span<const OperandType>, std::span<const OperandType>) -> int64_t {
            return 0;
          }};
}

double flops_of(const ModelConfig& config, const ProgramRequest& request, const CompileOptions& options) {
  const ProgramSet set = compile(config, std::vector<ProgramRequest>{request}, options, any_backend());
  return cost_of(set.programs[0]).flops;
}

// Hidden 8, 2 layers, gated MLP 24, 4 query and 2 key heads of 2, vocabulary 32, 16 tokens, window 4.
TEST(CompiledFlops, P109_OfABuiltProgramMatchTheHandCount) {
  ModelConfig config = family_defaults("llama");
  config.layers = 2;
  config.width = 8;
  config.heads = 4;
  config.key_value_heads = 2;
  config.feed_forward = 24;
  config.vocabulary = 32;
  config.maximum_positions = 16;
  config.window = 4;

  // By hand, one sample. Weights in products: query and output 8*8, key and value 4*8, gate, up and down
  // 24*8, in two layers, and the head 32*8; two FLOPs each per token, forward and twice that backward.
  const double weights = 2 * (2 * 64 + 2 * 32 + 3 * 192) + 256;
  const double products = weights * 2 * 16;
  // Visible pairs 1 + 2 + 3 + 13 * 4 = 58, 4 heads of 2, two FLOPs, two products forward and five backward.
  const double attention = 2 * (58 * 4 * 2 * 2);

  for (const bool tied : {false, true}) {
    for (const int64_t chunk : {int64_t{0}, int64_t{5}, int64_t{7}}) {  // 48 tokens in unequal chunks too
      for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
        config.tied_head = tied;
        CompileOptions options;
        options.head_chunk_tokens = chunk;
        options.recompute = recompute;
        const ProgramRequest train{ProgramKind::train, 2, 3, 16};
        EXPECT_EQ(flops_of(config, train, options), 6 * (3 * products + 7 * attention));
        const ProgramRequest validate{ProgramKind::validate, 1, 3, 16};
        EXPECT_EQ(flops_of(config, validate, options), 3 * (products + 2 * attention));
      }
    }
  }
  // Without a window all 16 * 17 / 2 = 136 pairs count.
  config.window = 0;
  EXPECT_EQ(flops_of(config, {ProgramKind::train, 1, 1, 16}, {}), 3 * products + 7 * attention * 136 / 58);
}

}  // namespace
}  // namespace athanor
