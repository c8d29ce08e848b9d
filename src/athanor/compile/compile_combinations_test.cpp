#include <gtest/gtest.h>

#include "athanor/compile/compile.h"

namespace athanor {
namespace {

// Every combination of the options that change a program's structure compiles, which verifies every graph
// after every pass and every program; and the text of every graph parses back.
TEST(CompileCombinations, VerifyAndPrint) {
  const Backend backend{
      "any", [](OperationKind, DType) { return true; },
      [](const Operation& operation, std::span<const OperandType>, std::span<const OperandType>) -> int64_t {
        return operation.kind == OperationKind::attention_gradient ? 1000
               : operation.kind == OperationKind::matmul           ? 128
                                                                   : 0;
      }};
  int index = 0, compiled = 0;
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool parallel : {false, true}) {
      for (const bool dropout : {false, true}) {
        for (const bool tied : {false, true}) {
          for (const bool query_key_norm : {false, true}) {
            for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
              for (const Precision precision : {Precision::fp64, Precision::bf16}) {
                // The other choices change in turn: they concern other parts of a program.
                ++index;
                ModelConfig config = family_defaults(family);
                config.layers = 3;
                config.width = 16;
                config.heads = 4;
                config.key_value_heads = index % 3 == 0 ? 4 : 2;
                config.feed_forward = 24;
                config.vocabulary = 37;
                config.maximum_positions = 24;
                config.parallel_block = parallel;
                config.dropout = dropout ? 0.1 : 0;
                config.tied_head = tied;
                config.query_key_norm = query_key_norm;
                config.bias = index % 5 < 3;
                config.window_pattern = {0, 4};
                CompileOptions options;
                options.precision = precision;
                options.recompute = recompute;
                options.optimizer.kind = static_cast<OptimizerKind>(index % 3);
                options.optimizer.average_decay = index % 2 == 0 ? 0.9 : 0;
                options.head_chunk_tokens = index % 4 == 0 ? 0 : 5;
                if (precision == Precision::bf16 && index % 7 < 3) options.residual = DType::bf16;
                const std::vector<ProgramRequest> requests = {{ProgramKind::train, 1 + index % 3, 2, 8},
                                                              {ProgramKind::validate, 1, 2, 8},
                                                              {ProgramKind::predict, 1, 1, 24}};
                const ProgramSet set = compile(config, requests, options, backend);
                for (const StepProgram& program : set.programs) {
                  for (const Template& block : program.templates) {
                    ASSERT_EQ(parse_graph(to_text(block.graph)), block.graph) << to_text(block.graph);
                    ASSERT_FALSE(to_text(block).empty());
                  }
                  ASSERT_FALSE(calls_text(program).empty());
                  ASSERT_FALSE(memory_text(program, set.persistent_bytes).empty());
                }
                ++compiled;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(compiled, 192);
}

}  // namespace
}  // namespace athanor
