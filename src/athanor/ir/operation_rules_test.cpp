#include "athanor/ir/operation_rules.h"

#include <gtest/gtest.h>

#include "athanor/ir/test_graphs.h"

namespace athanor {
namespace {

OperandType of(Shape shape, DType dtype = DType::fp32) {
  return {.dtype = dtype, .shape = shape, .present = true};
}
const OperandType absent;

Cost cost(OperationKind kind, const Attributes& attributes, const std::vector<OperandType>& inputs,
          const std::vector<OperandType>& outputs) {
  return row_of(kind).cost(attributes, inputs, outputs);
}

TEST(VisiblePairs, IsTheNumberThatAMaskLeaves) {
  for (int64_t length = 0; length <= 40; ++length) {
    for (int64_t window = 0; window <= 45; ++window) {
      int64_t pairs = 0;
      for (int64_t query = 0; query < length; ++query) {
        for (int64_t key = 0; key < length; ++key) {
          pairs += key <= query && (window == 0 || query - key < window) ? 1 : 0;
        }
      }
      EXPECT_EQ(visible_pairs(length, window), pairs) << length << " " << window;
    }
  }
  EXPECT_EQ(visible_pairs(1 << 20, 0), int64_t{1 << 19} * ((1 << 20) + 1));
}

TEST(OperationCost, ProductsCountTwoFlopsForEachMultiplyAdd) {
  using enum OperationKind;
  // 2 x 3 tokens, 5 inputs, 7 outputs.
  const Cost forward = cost(matmul, {}, {of({2, 3, 5}), of({7, 5}), of({7})}, {of({2, 3, 7}), absent});
  EXPECT_EQ(forward.flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(forward.bytes, 4 * (30 + 35 + 7 + 42));
  const Cost input = cost(matmul_input_gradient, {}, {of({2, 3, 7}), of({7, 5}), absent}, {of({2, 3, 5})});
  EXPECT_EQ(input.flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(input.bytes, 4 * (42 + 35 + 30));
  const Cost weight = cost(matmul_weight_gradient, {},
                           {of({2, 3, 7}, DType::bf16), of({2, 3, 5}, DType::bf16)}, {of({7, 5})});
  EXPECT_EQ(weight.flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(weight.bytes, 2 * (42 + 30) + 4 * 35);
  EXPECT_EQ(cost(matmul, {}, {of({0, 3, 5}), of({7, 5}), absent}, {of({0, 3, 7}), absent}).flops, 0);
  // Above 2^53 a double may round; above 2^63 an integer would have been wrong.
  const int64_t tokens = int64_t{1} << 24, width = int64_t{1} << 20;
  EXPECT_EQ(
      cost(matmul, {}, {of({1, tokens, width}), of({width, width}), absent}, {of({1, tokens, width}), absent})
          .flops,
      std::ldexp(1.0, 65));
}

TEST(OperationCost, AttentionCountsVisiblePairsOnly) {
  using enum OperationKind;
  // 2 samples of 10 tokens, 6 query and 2 key heads of 4, window 3: 1 + 2 + 8 * 3 = 27 pairs.
  const OperandType q = of({2, 10, 6, 4}), k = of({2, 10, 2, 4}), statistic = of({2, 10, 6});
  const OperandType tokens = of({2, 10}, DType::int32);
  const Attributes window{.window = 3};
  const std::vector<OperandType> inputs{q, k, k, tokens, tokens, absent, absent};
  EXPECT_EQ(cost(attention, window, inputs, {q, statistic}).flops, 2 * 2 * 4 * 27 * 2 * 6);
  EXPECT_EQ(cost(attention, {}, inputs, {q, statistic}).flops, 2 * 2 * 4 * 55 * 2 * 6);
  EXPECT_EQ(cost(attention, window, inputs, {q, statistic}).bytes,
            4 * (480 + 160 + 160 + 20 + 20 + 480 + 120));
  EXPECT_EQ(
      cost(attention_gradient, window, {q, q, k, k, q, statistic, tokens, tokens, absent, absent}, {q, k, k})
          .flops,
      5 * 2 * 4 * 27 * 2 * 6);
}

TEST(OperationCost, TheRestCountsBytes) {
  using enum OperationKind;
  const Cost gelu_cost = cost(gelu, {}, {of({2, 3, 5}, DType::bf16)}, {of({2, 3, 5}, DType::bf16)});
  EXPECT_EQ(gelu_cost.flops, 0);
  EXPECT_EQ(gelu_cost.bytes, 2 * 2 * 30);
  // Of a table of 1000 rows only the 6 that are looked up are read.
  EXPECT_EQ(cost(embedding, {}, {of({1000, 5}), of({2, 3}, DType::int32)}, {of({2, 3, 5})}).bytes,
            4 * (30 + 6 + 30));
  EXPECT_EQ(cost(embedding_gradient, {}, {of({2, 3, 5}), of({2, 3}, DType::int32)}, {of({1000, 5})}).bytes,
            4 * (30 + 6 + 2 * 30));
  EXPECT_EQ(cost(slice, {}, {of({2, 3, 15})}, {of({2, 3, 5})}).bytes, 0);
  // Three states read and written, the working copy written.
  EXPECT_EQ(cost(adamw, {}, {of({100}), of({1}, DType::fp64), of({1}, DType::fp64)},
                 {of({100}), of({100}), of({100}), of({100}, DType::bf16), absent})
                .bytes,
            400 + 8 + 8 + 3 * 800 + 200);
  EXPECT_EQ(cost(sgd, {}, {of({100}), of({1}, DType::fp64), of({1}, DType::fp64)},
                 {of({100}), of({100}), absent, of({100})})
                .bytes,
            400 + 8 + 8 + 3 * 800);
}

TEST(OperationCost, OfARegionCountsTheShorterLastChunk) {
  const Graph graph = make_example_graph();
  // 8 rows in chunks of 3, width 8, vocabulary 11: as if in one piece.
  double product = 0, input = 0, weight = 0, loss_bytes = 0;
  for (const Operation& operation : graph.operations) {
    if (operation.region != 0) continue;
    const Cost total = cost_of(graph, operation);
    if (operation.kind == OperationKind::matmul) product = total.flops;
    if (operation.kind == OperationKind::matmul_input_gradient) input = total.flops;
    if (operation.kind == OperationKind::matmul_weight_gradient) weight = total.flops;
    if (operation.kind == OperationKind::cross_entropy) loss_bytes = total.bytes;
  }
  EXPECT_EQ(product, 2 * 8 * 8 * 11);
  EXPECT_EQ(input, 2 * 8 * 8 * 11);
  EXPECT_EQ(weight, 2 * 8 * 8 * 11);
  EXPECT_EQ(loss_bytes, 4 * (88 + 8 + 8 + 88) + 3 * 8);  // valid_tokens is read in each of three iterations
}

// Hidden 8, 2 layers, gated MLP 24, 4 query and 2 key heads, vocabulary 32, one sample of 16 tokens,
// window 4.
TEST(OperationCost, P109_FlopsOfAModelMatchTheHandCount) {
  using enum OperationKind;
  GraphBuilder b("model");
  const Shape wide{1, 16, 8}, narrow{1, 16, 4}, feed{1, 16, 24}, q_shape{1, 16, 4, 2}, k_shape{1, 16, 2, 2};
  b.graph.regions.push_back({.name = "logits", .rows = 16, .chunk_rows = 5});
  const ValueId positions = b.input("positions", {1, 16}, Role::batch, DType::int32);
  const ValueId x = b.input("x", wide, Role::residual);
  const Attributes window{.window = 4};
  int weights = 0;
  // A product and both its gradients.
  const auto product = [&](const std::string& name, ValueId input, Shape weight_shape, Shape out_shape) {
    const ValueId weight = b.input(name + ".weight", weight_shape, Role::parameter);
    const ValueId y = b.value(name, out_shape), dx = b.value(name + ".dx", b.graph.value(input).shape);
    const ValueId dweight = b.value(name + ".dweight", weight_shape, Role::parameter_gradient);
    b.add(matmul, {input, weight}, {y});
    b.add(matmul_input_gradient, {y, weight}, {dx});  // y stands in for its gradient, which has its shape
    b.add(matmul_weight_gradient, {y, input}, {dweight});
    weights += static_cast<int>(weight_shape.elements());
    return y;
  };
  const auto reshaped = [&](ValueId input, Shape shape) {
    const ValueId y = b.value(b.graph.value(input).name + ".reshaped", shape);
    b.add(reshape, {input}, {y});
    return y;
  };
  ValueId residual = x;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = fmt::format("block.{}.", layer);
    const ValueId q = reshaped(product(at + "query", residual, {8, 8}, wide), q_shape);
    const ValueId k = reshaped(product(at + "key", residual, {4, 8}, narrow), k_shape);
    const ValueId v = reshaped(product(at + "value", residual, {4, 8}, narrow), k_shape);
    const ValueId out = b.value(at + "out", q_shape), statistic = b.value(at + "lse", {1, 16, 4});
    b.add(attention, {q, k, v, positions, positions}, {out, statistic}, window);
    const ValueId dq = b.value(at + "dq", q_shape), dk = b.value(at + "dk", k_shape),
                  dv = b.value(at + "dv", k_shape);
    b.add(attention_gradient, {out, q, k, v, out, statistic, positions, positions}, {dq, dk, dv}, window);
    const ValueId attended = product(at + "output", reshaped(out, wide), {8, 8}, wide);
    const ValueId gate = product(at + "gate", attended, {24, 8}, feed),
                  up = product(at + "up", attended, {24, 8}, feed);
    const ValueId gated = b.value(at + "gated", feed);
    b.add(swiglu, {gate, up}, {gated});
    residual = product(at + "down", gated, {8, 24}, wide);
  }
  const ValueId head = b.input("head.weight", {32, 8}, Role::parameter);
  const ValueId rows = b.value("rows", {1, 5, 8}), logits = b.value("logits", {1, 5, 32});
  const ValueId drows = b.value("drows", {1, 5, 8}), dhead = b.value("dhead", {32, 8});
  b.add(chunk, {residual}, {rows}, {.region = 0}).region = 0;
  b.add(matmul, {rows, head}, {logits}).region = 0;
  b.add(matmul_input_gradient, {logits, head}, {drows}).region = 0;
  b.add(matmul_weight_gradient, {logits, rows}, {dhead}).region = 0;
  ASSERT_NO_THROW(verify(b.graph));

  // By hand. Weights of a layer: query 8*8, key 4*8, value 4*8, output 8*8, gate 24*8, up 24*8, down 8*24 =
  // 768.
  EXPECT_EQ(weights, 2 * 768);
  // Products: (2 layers * 768 + head 32*8) weights * 16 tokens * 2, forward and twice that backward.
  const double products = (2 * 768 + 256) * 16 * 2 * 3;
  // Pairs in the window: 1 + 2 + 3 + 13 * 4 = 58, of 4 heads of 2; two products forward, five backward.
  const double attentions = 2 * (4 * 58 * 2 * 2) * (2 + 5);
  double total = 0;
  for (const Operation& operation : b.graph.operations) total += cost_of(b.graph, operation).flops;
  EXPECT_EQ(total, products + attentions);
  EXPECT_EQ(total, 172032 + 12992);
}

// One misfit of each kind of operand is found and named.
TEST(OperationCheck, FindsWhatDoesNotFit) {
  using enum OperationKind;
  const OperandType x = of({2, 6, 8}), tokens = of({2, 6}, DType::int32), statistic = of({2, 6}),
                    vector = of({8});
  const OperandType q = of({2, 6, 4, 2}), k = of({2, 6, 2, 2}), lse = of({2, 6, 4}),
                    samples = of({2}, DType::int64);
  const OperandType one = of({1}, DType::fp64), bucket = of({50});
  struct Case {
    OperationKind kind;
    Attributes attributes;
    std::vector<OperandType> inputs, outputs;
  };
  const std::vector<Case> cases = {
      {embedding, {}, {of({32, 8}), tokens}, {x}},
      {embedding_gradient, {}, {x, tokens}, {of({32, 8})}},
      {matmul,
       {.activation = Activation::gelu},
       {x, of({24, 8}), of({24})},
       {of({2, 6, 24}), of({2, 6, 24})}},
      {matmul_input_gradient, {}, {of({2, 6, 24}), of({24, 8}), x}, {x}},
      {matmul_weight_gradient, {}, {of({2, 6, 24}), x}, {of({24, 8})}},
      {bias_gradient, {}, {x}, {vector}},
      {layer_norm, {}, {x, vector, vector, x}, {x, statistic, statistic, x}},
      {layer_norm_input_gradient, {}, {x, x, vector, statistic, statistic, x}, {x}},
      {layer_norm_weight_gradient, {}, {x, x, statistic, statistic}, {vector, vector}},
      {rms_norm, {}, {q, of({2}), q}, {q, lse, q}},
      {rms_norm_input_gradient, {}, {q, q, of({2}), lse, q}, {q}},
      {rms_norm_weight_gradient, {}, {q, q, lse}, {of({2})}},
      {gelu, {}, {x}, {x}},
      {gelu_gradient, {}, {x, x}, {x}},
      {swiglu, {}, {x, x}, {x}},
      {swiglu_gradient, {}, {x, x, x}, {x, x}},
      {rotary, {}, {q, tokens}, {q}},
      {attention, {.probability = 0.1}, {q, k, k, tokens, tokens, tokens, samples}, {q, lse}},
      {attention_gradient, {}, {q, q, k, k, q, lse, tokens, tokens, tokens, samples}, {q, k, k}},
      {OperationKind::add, {}, {x, x}, {x}},
      {dropout, {}, {x, samples, tokens, x}, {x}},
      {cross_entropy, {}, {of({2, 6, 32}), tokens, one}, {statistic, of({2, 6, 32})}},
      {count_valid, {}, {}, {one}},
      {OperationKind::sum, {}, {}, {one}},
      {cast, {}, {x}, {x}},
      {slice, {.offset = 2}, {x}, {of({2, 6, 3, 2})}},
      {concat, {}, {x, q}, {of({2, 6, 16})}},
      {reshape, {}, {x}, {q}},
      {load_batch, {}, {}, {tokens, tokens, tokens, tokens, tokens, samples}},
      {clip, {}, {of({9}), one}, {one, one, one}},
      {adamw, {}, {bucket, one, one}, {bucket, bucket, bucket, bucket, bucket}},
      {sgd, {}, {bucket, one, one}, {bucket, bucket, bucket, bucket}},
      {lamb_norms, {}, {bucket, one, one, bucket, bucket, bucket}, {of({4})}},
      {lamb, {}, {bucket, one, one}, {bucket, bucket, bucket, bucket, bucket}},
  };
  for (const Case& good : cases) {
    const OperationRow& row = row_of(good.kind);
    const auto problem = row.check(good.attributes, good.inputs, good.outputs);
    EXPECT_EQ(problem, std::nullopt) << row.name << ": " << problem.value_or("");
    // Each operand in turn gets a shape that fits nowhere.
    for (size_t i = 0; i < good.inputs.size() + good.outputs.size(); ++i) {
      Case bad = good;
      (i < bad.inputs.size() ? bad.inputs[i] : bad.outputs[i - bad.inputs.size()]).shape = Shape{3, 5, 7, 11};
      EXPECT_NE(row.check(bad.attributes, bad.inputs, bad.outputs), std::nullopt)
          << row.name << " operand " << i;
      // One of rank 0 too: no rule may look at a dim that is not there.
      (i < bad.inputs.size() ? bad.inputs[i] : bad.outputs[i - bad.inputs.size()]).shape = Shape{};
      EXPECT_NE(row.check(bad.attributes, bad.inputs, bad.outputs), std::nullopt)
          << row.name << " operand " << i;
    }
  }
  // Misfits between attributes and operands.
  const auto check = [](OperationKind kind, const Attributes& attributes,
                        const std::vector<OperandType>& inputs, const std::vector<OperandType>& outputs) {
    return row_of(kind).check(attributes, inputs, outputs).value_or("");
  };
  EXPECT_EQ(check(matmul, {}, {x, of({24, 8}), absent}, {of({2, 6, 24}), of({2, 6, 24})}),
            "output activated without an activation");
  EXPECT_EQ(
      check(matmul, {.activation = Activation::gelu}, {x, of({24, 8}), absent}, {of({2, 6, 24}), absent}),
      "an activation without output activated");
  EXPECT_EQ(check(layer_norm, {}, {x, vector, absent, absent}, {x, statistic, statistic, x}),
            "output total without an addend");
  EXPECT_EQ(check(attention, {.probability = 0.1}, {q, k, k, tokens, tokens, absent, absent}, {q, lse}),
            "dropout of scores needs indices and sample_ids");
  EXPECT_EQ(check(attention, {}, {of({2, 6, 3, 2}), k, k, tokens, tokens, absent, absent},
                  {of({2, 6, 3, 2}), of({2, 6, 3})}),
            "3 query heads are no multiple of 2 key heads");
  EXPECT_EQ(check(rotary, {}, {of({2, 6, 4, 3}), tokens}, {of({2, 6, 4, 3})}), "the head dim 3 is odd");
  EXPECT_EQ(check(cross_entropy, {}, {of({2, 6, 32}), tokens, absent}, {statistic, of({2, 6, 32})}),
            "output dlogits without valid_tokens");
  EXPECT_EQ(check(slice, {.offset = 3}, {x}, {of({2, 6, 3, 2})}), "elements [3, 3 + 6) of a row of 8");
  EXPECT_EQ(check(slice, {.offset = -1}, {x}, {of({2, 6, 3, 2})}), "elements [-1, -1 + 6) of a row of 8");
  EXPECT_EQ(check(concat, {}, {x, x}, {of({2, 6, 17})}), "rows of 16 elements make no row of 17");
  EXPECT_EQ(check(reshape, {}, {x}, {of({2, 3, 16})}), "x [2,6,8] has other rows than y [2,3,16]");
  EXPECT_EQ(check(reshape, {}, {x}, {of({1, 12, 8})}), "");  // rows of tokens stay rows
}

}  // namespace
}  // namespace athanor
