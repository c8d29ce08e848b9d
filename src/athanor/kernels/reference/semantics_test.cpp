// What reference kernels do at the edges: masks, dropout, odd widths, accumulation, bad ids, storage types.
#include <limits>

#include "athanor/base/error.h"
#include "athanor/kernels/dropout_coordinates.h"
#include "athanor/kernels/kernel_test_support.h"

namespace athanor::testing {
namespace {

constexpr DType fp64 = DType::fp64;
constexpr DType int32 = DType::int32;
constexpr double infinity = std::numeric_limits<double>::infinity();

Call call(OperationKind kind, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
          Attributes attributes = {}) {
  Call result;
  result.kind = kind;
  result.inputs = std::move(inputs);
  result.outputs = std::move(outputs);
  result.attributes = std::move(attributes);
  return result;
}
Tensor values(Shape shape, const std::vector<double>& list) {
  return Tensor(fp64, shape).assign(list);
}
Tensor integers(Shape shape, const std::vector<double>& list) {
  return Tensor(int32, shape).assign(list);
}

// With scores of 0 every visible key counts alike, and with value j = 10^j the output names the visible keys.
std::vector<double> visible_sums(const std::vector<double>& positions, const std::vector<double>& documents,
                                 int64_t window) {
  const auto length = static_cast<int64_t>(positions.size());
  const Shape shape{1, length, 1, 1};
  Tensor zero(fp64, shape), powers(fp64, shape);
  for (int64_t i = 0; i < length; ++i) {
    zero.set(i, 0);
    powers.set(i, std::pow(10.0, static_cast<double>(i)));
  }
  Call attention = call(OperationKind::attention,
                        {zero, zero, powers, integers({1, length}, positions),
                         integers({1, length}, documents), Tensor(), Tensor()},
                        {Tensor(fp64, shape), Tensor(fp64, {1, length, 1})}, {.window = window});
  run_reference(attention);
  std::vector<double> sums;
  for (int64_t i = 0; i < length; ++i) {
    const double keys =
        std::exp(attention.outputs[1].get(i));  // logsumexp of zeros is the log of their number
    sums.push_back(std::round(keys * attention.outputs[0].get(i)));
  }
  return sums;
}

TEST(ReferenceAttention, MaskComparesPositionsAndDocuments) {
  EXPECT_EQ(visible_sums({0, 1, 2, 3}, {0, 0, 0, 0}, 0), (std::vector<double>{1, 11, 111, 1111}));
  EXPECT_EQ(visible_sums({0, 1, 2, 3}, {0, 0, 0, 0}, 2), (std::vector<double>{1, 11, 110, 1100}));
  EXPECT_EQ(visible_sums({0, 1, 0, 1}, {0, 0, 1, 1}, 0), (std::vector<double>{1, 11, 100, 1100}));
  // Positions in any order: what stands later may be earlier.
  EXPECT_EQ(visible_sums({3, 0, 2, 1}, {0, 0, 0, 0}, 0), (std::vector<double>{1111, 10, 1110, 1010}));
  EXPECT_EQ(visible_sums({3, 0, 2, 1}, {0, 0, 0, 0}, 2), (std::vector<double>{101, 10, 1100, 1010}));
}

TEST(ReferenceAttention, QueryThatSeesNothingGivesZero) {
  // A negative window leaves nothing visible, not even the token itself.
  const Shape shape{1, 3, 2, 2};
  const Tensor q = Tensor(fp64, shape).fill("q"), ids = integers({1, 3}, {0, 1, 2});
  Call forward = call(OperationKind::attention, {q, q, q, ids, ids, Tensor(), Tensor()},
                      {Tensor(fp64, shape), Tensor(fp64, {1, 3, 2})}, {.window = -1});
  run_reference(forward);
  for (const double value : forward.outputs[0].values()) EXPECT_EQ(value, 0);
  for (const double value : forward.outputs[1].values()) EXPECT_EQ(value, -infinity);
  Call backward = call(OperationKind::attention_gradient,
                       {q, q, q, q, forward.outputs[0], forward.outputs[1], ids, ids, Tensor(), Tensor()},
                       {Tensor(fp64, shape), Tensor(fp64, shape), Tensor(fp64, shape)}, {.window = -1});
  run_reference(backward);
  for (const Tensor& gradient : backward.outputs) {
    for (const double value : gradient.values()) EXPECT_EQ(value, 0);
  }
}

// The mask depends on sample, index and feature alone: cutting the batch another way keeps it.
TEST(ReferenceDropout, FollowsGlobalCoordinates) {
  const Attributes attributes{.probability = 0.25, .name = "block.0.dropout"};
  const int64_t S = 50, D = 9;
  const auto drop = [&](std::vector<double> samples, int64_t first, int64_t count, int64_t step,
                        const std::string& name) {
    const auto B = static_cast<int64_t>(samples.size());
    Tensor x(fp64, {B, count, D}), indices(int32, {B, count});
    for (int64_t i = 0; i < x.elements(); ++i) x.set(i, 1);
    for (int64_t i = 0; i < B * count; ++i) indices.set(i, static_cast<double>(first + i % count));
    Call dropout =
        call(OperationKind::dropout, {x, Tensor(DType::int64, {B}).assign(samples), indices, Tensor()},
             {Tensor(fp64, {B, count, D})}, attributes);
    dropout.attributes.name = name;
    dropout.step.step = step;
    dropout.step.seed = 3;
    run_reference(dropout);
    return dropout.outputs[0].values();
  };
  const std::string name = "block.0.dropout";
  const std::vector<double> both = drop({4, 1e12}, 0, S, 7, name), second = drop({1e12}, 20, 10, 7, name);
  for (int64_t i = 0; i < 10 * D; ++i) {
    EXPECT_EQ(second[static_cast<size_t>(i)], both[static_cast<size_t>((S + 20) * D + i)]) << i;
  }
  int64_t kept = 0;
  for (const double value : both) {
    EXPECT_TRUE(value == 0 || value == 1 / 0.75) << value;
    kept += value != 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(kept), 0.75 * 900, 4 * std::sqrt(900 * 0.75 * 0.25));
  EXPECT_NE(both, drop({4, 1e12}, 0, S, 8, name)) << "another step";
  EXPECT_NE(both, drop({4, 1e12}, 0, S, 7, "block.1.dropout")) << "another operation";
}

TEST(ReferenceDropout, ThresholdMeetsItsEnds) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(1), 0xFFFFFFFFu);
}

TEST(ReferenceEmbedding, RefusesIdsOutsideOfTheVocabulary) {
  for (const double id : {-1.0, 5.0, 2e9}) {
    Call embedding =
        call(OperationKind::embedding, {Tensor(fp64, {5, 2}).fill("t"), integers({1, 2}, {0, id})},
             {Tensor(fp64, {1, 2, 2})});
    try {
      run_reference(embedding);
      ADD_FAILURE() << id << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      EXPECT_NE(error.message().find(fmt::format("{}", static_cast<int64_t>(id))), std::string::npos);
      EXPECT_NE(error.message().find("vocabulary of 5"), std::string::npos);
    }
    Call loss = call(OperationKind::cross_entropy,
                     {Tensor(fp64, {1, 2, 5}).fill("l"), integers({1, 2}, {0, id}), Tensor()},
                     {Tensor(fp64, {1, 2}), Tensor()});
    EXPECT_THROW(run_reference(loss), Error);
  }
}

// All labels ignored give zeros, never NaN.
TEST(ReferenceCrossEntropy, NoValidToken_P08_GivesZeros) {
  const double none = ignored_label;
  Call loss = call(OperationKind::cross_entropy,
                   {Tensor(fp64, {1, 2, 5}).fill("l"), integers({1, 2}, {none, none}), values({1}, {0})},
                   {Tensor(fp64, {1, 2}), Tensor(fp64, {1, 2, 5})});
  run_reference(loss);
  for (const Tensor& output : loss.outputs) {
    for (const double value : output.values()) EXPECT_EQ(value, 0);
  }
  // A valid label and a count of 0: the count stands for the step, and still no division by it.
  loss.inputs[1] = integers({1, 2}, {none, 3});
  run_reference(loss);
  EXPECT_GT(loss.outputs[0].get(1), 0);
  for (const double value : loss.outputs[1].values()) EXPECT_EQ(value, 0);
}

TEST(ReferenceCrossEntropy, GradientMayOverwriteTheLogits) {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
    Call loss = call(OperationKind::cross_entropy,
                     {Tensor(dtype, {1, 3, 7}).fill("l", -2, 2), integers({1, 3}, {2, ignored_label, 6}),
                      values({1}, {2})},
                     {Tensor(fp64, {1, 3}), Tensor(dtype, {1, 3, 7})},
                     {.label_smoothing = 0.1, .z_loss = 0.1, .soft_cap = 3});
    Call shared = loss;
    shared.shared_with = {-1, 0};
    run_reference(loss);
    run_reference(shared);
    EXPECT_EQ(loss.outputs[1].bytes, shared.outputs[1].bytes) << name_of(dtype);
    EXPECT_EQ(loss.outputs[0].bytes, shared.outputs[0].bytes) << name_of(dtype);
  }
}

// Every row that accumulates adds to what is there, or overwrites it whatever it is.
TEST(ReferenceKernels, AccumulateOrOverwrite) {
  const Tensor dy = Tensor(fp64, {1, 3, 2}).fill("dy"), x = Tensor(fp64, {1, 3, 5}).fill("x");
  const Tensor labels = integers({1, 3}, {0, ignored_label, 2}), statistic = Tensor(fp64, {1, 3}).fill("s");
  const Tensor dx = Tensor(fp64, {1, 3, 5}).fill("dx");
  const std::vector<Call> calls = {
      call(OperationKind::embedding_gradient, {x, integers({1, 3}, {1, 0, 1})}, {Tensor(fp64, {3, 5})}),
      call(OperationKind::matmul_weight_gradient, {dy, x}, {Tensor(fp64, {2, 5})}),
      call(OperationKind::bias_gradient, {x}, {Tensor(fp64, {5})}),
      call(OperationKind::layer_norm_weight_gradient, {dx, x, statistic, statistic},
           {Tensor(fp64, {5}), Tensor(fp64, {5})}),
      call(OperationKind::rms_norm_weight_gradient, {dx, x, statistic}, {Tensor(fp64, {5})}),
      call(OperationKind::count_valid, {labels}, {Tensor(fp64, {1})}),
      call(OperationKind::sum, {x}, {Tensor(fp64, {1})})};
  std::vector<OperationKind> covered;
  for (Call fresh : calls) {
    SCOPED_TRACE(std::string(name_of(fresh.kind)));
    covered.push_back(fresh.kind);
    Call added = fresh;
    for (Tensor& output : fresh.outputs) {
      for (int64_t i = 0; i < output.elements(); ++i) output.set(i, std::numeric_limits<double>::quiet_NaN());
    }
    run_reference(fresh);
    added.accumulate = true;
    for (Tensor& output : added.outputs) output.fill("before", 1, 2);
    const std::vector<Tensor> before = added.outputs;
    run_reference(added);
    for (size_t o = 0; o < fresh.outputs.size(); ++o) {
      for (int64_t i = 0; i < fresh.outputs[o].elements(); ++i) {
        EXPECT_DOUBLE_EQ(added.outputs[o].get(i), before[o].get(i) + fresh.outputs[o].get(i));
      }
    }
  }
  for (int kind = 0; kind < operation_kind_count; ++kind) {
    const OperationRow& row = row_of(static_cast<OperationKind>(kind));
    if (row.accumulates && !row.is_collective) {
      EXPECT_NE(std::find(covered.begin(), covered.end(), static_cast<OperationKind>(kind)), covered.end())
          << name_of(static_cast<OperationKind>(kind)) << " needs a case";
    }
  }
}

// Every row that computes has a kernel for every float type.
TEST(ReferenceKernels, CoverTheTable) {
  for (int i = 0; i < operation_kind_count; ++i) {
    const auto kind = static_cast<OperationKind>(i);
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const bool loads = kind == OperationKind::load_batch || kind == OperationKind::load_tokens;
      const bool expected = !row_of(kind).is_view && !row_of(kind).is_collective && !loads;
      EXPECT_EQ(reference_table().find(kind, dtype) != nullptr, expected)
          << name_of(kind) << " " << name_of(dtype);
    }
  }
  EXPECT_NE(reference_table().find(OperationKind::load_batch, DType::int32), nullptr);
}

// Sums of bf16 products in bf16 would stop growing at 256.
TEST(ReferenceKernels, AccumulateInDoubleWhateverTheStorage) {
  Tensor x(DType::bf16, {1, 1, 1000}), weight(DType::bf16, {1, 1000});
  for (int64_t i = 0; i < 1000; ++i) {
    x.set(i, 1);
    weight.set(i, 1);
  }
  Call matmul =
      call(OperationKind::matmul, {x, weight, Tensor()}, {Tensor(DType::fp32, {1, 1, 1}), Tensor()});
  run_reference(matmul);
  EXPECT_EQ(matmul.outputs[0].get(0), 1000);
}

TEST(ReferenceKernels, LoadBatchCopiesItsMicroBatch) {
  const std::vector<int32_t> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12};
  const std::vector<int64_t> samples = {1LL << 40, 5};
  Call load = call(OperationKind::load_batch, {}, {});
  for (int i = 0; i < 5; ++i) load.outputs.push_back(Tensor(int32, {2, 3}));
  load.outputs.push_back(Tensor(DType::int64, {2}));
  load.step.micro_batches = {HostBatch{},
                             HostBatch{a.data(), b.data(), b.data(), a.data(), b.data(), samples.data()}};
  load.micro_batch = 1;
  run_reference(load);
  const std::vector<double> first = {1, 2, 3, 4, 5, 6}, second = {7, 8, 9, 10, 11, 12};
  EXPECT_EQ(load.outputs[0].values(), first);
  EXPECT_EQ(load.outputs[1].values(), second);
  EXPECT_EQ(load.outputs[2].values(), second);
  EXPECT_EQ(load.outputs[3].values(), first);
  EXPECT_EQ(load.outputs[4].values(), second);
  EXPECT_EQ(load.outputs[5].values(), (std::vector<double>{0x1p40, 5}));
}

}  // namespace
}  // namespace athanor::testing
