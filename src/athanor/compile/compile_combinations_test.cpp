#include <gtest/gtest.h>

#include "athanor/compile/compile.h"

namespace athanor {
namespace {

struct Case {
  ModelConfig config;
  CompileOptions options;
  int32_t micro_batches = 1;
};

// All combinations of six choices of a program's structure, by the digits of `index`. The others change in
// turn: they concern other parts of a program.
constexpr int cases = 2 * 2 * 2 * 2 * 2 * 3;
Case make_case(int index) {
  int rest = index;
  const auto choose = [&](int count) {
    const int choice = rest % count;
    rest /= count;
    return choice;
  };
  Case c;
  c.config = family_defaults(choose(2) == 0 ? "gpt2" : "llama");
  c.config.parallel_block = choose(2) == 1;
  c.config.dropout = choose(2) == 1 ? 0.1 : 0;
  c.config.tied_head = choose(2) == 1;
  c.options.precision = choose(2) == 1 ? Precision::bf16 : Precision::fp64;
  c.options.recompute = static_cast<Recompute>(choose(3));

  c.config.layers = 3;
  c.config.width = 16;
  c.config.heads = 4;
  c.config.key_value_heads = index % 3 == 0 ? 4 : 2;
  c.config.feed_forward = 24;
  c.config.vocabulary = 37;
  c.config.maximum_positions = 24;
  c.config.window_pattern = {0, 4};
  c.config.query_key_norm = index % 7 < 3;
  c.config.bias = index % 5 < 3;
  c.options.optimizer.kind = static_cast<OptimizerKind>((index / 5) % 3);
  c.options.optimizer.average_decay = index % 11 < 5 ? 0.9 : 0;
  c.options.head_chunk_tokens = index % 7 < 2 ? 0 : 5;
  if (c.options.precision == Precision::bf16 && index % 13 < 6) c.options.residual = DType::bf16;
  c.micro_batches = 1 + index % 3;
  return c;
}

// Compiling verifies every graph after every pass and every program; and the text of every graph parses back.
TEST(CompileCombinations, VerifyAndPrint) {
  const Backend backend{
      "any", [](OperationKind, DType) { return true; },
      [](const Operation& operation, std::span<const OperandType>, std::span<const OperandType>) -> int64_t {
        return operation.kind == OperationKind::attention_gradient ? 1000 : 0;
      }};
  for (int index = 0; index < cases; ++index) {
    const Case c = make_case(index);
    const std::vector<ProgramRequest> requests = {{ProgramKind::train, c.micro_batches, 2, 8},
                                                  {ProgramKind::validate, 1, 2, 8},
                                                  {ProgramKind::prefill, 1, 1, 24, {3, 24, 24}},
                                                  {ProgramKind::decode, 1, 3, 1, {3, 24, 24}}};
    ProgramSet set;
    ASSERT_NO_THROW(set = compile(c.config, requests, c.options, backend)) << index;
    for (const StepProgram& program : set.programs) {
      for (const Template& block : program.templates) {
        ASSERT_EQ(parse_graph(to_text(block.graph)), block.graph) << index << "\n" << to_text(block);
      }
      ASSERT_FALSE(calls_text(program).empty());
      ASSERT_FALSE(memory_text(program, set.persistent_bytes).empty());
    }
  }
}

}  // namespace
}  // namespace athanor
