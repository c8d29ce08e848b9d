#include "athanor/kernels/cpu/attention.h"

#include <limits>
#include <memory>
#include <optional>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/attention_test_support.h"
#include "athanor/kernels/dropout_coordinates.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::Tensor;

enum class Layout { causal, documents, shuffled };

struct Case {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, key_heads = 1, size = 16;
  int64_t window = 0;
  double probability = 0;
  Layout layout = Layout::causal;
  DType dtype = DType::fp32;
  AttentionArithmetic arithmetic = AttentionArithmetic::convert;
  int64_t padding = 0;

  std::string name() const {
    return fmt::format("B{} Sq{} Sk{} H{} K{} E{} window {} p {} layout {} {} arithmetic {} padding {}",
                       batch, queries, keys, heads, key_heads, size, window, probability,
                       static_cast<int>(layout), name_of(dtype), static_cast<int>(arithmetic), padding);
  }
};

// Inputs and outputs of one case. With more keys than queries the queries are the sample's last tokens.
struct Problem : testing::AttentionTensors {
  Case c;
  std::vector<int32_t> query_positions, query_documents, query_indices;
  std::vector<int32_t> key_positions, key_documents, key_indices;
  std::vector<int64_t> samples;
  double scale;
  testing::ComputedBlocks computed;

  explicit Problem(const Case& a_case) : c(a_case), scale(0.9 / std::sqrt(static_cast<double>(c.size))) {
    q = Tensor(c.dtype, c.batch * c.queries, c.heads * c.size, c.padding).fill("q");
    k = Tensor(c.dtype, c.batch * c.keys, c.key_heads * c.size, c.padding).fill("k");
    v = Tensor(c.dtype, c.batch * c.keys, c.key_heads * c.size, c.padding).fill("v");
    dout = Tensor(c.dtype, c.batch * c.queries, c.heads * c.size, c.padding).fill("dout");
    for (int64_t b = 0; b < c.batch; ++b) {
      samples.push_back(1000 * b + (int64_t{1} << 35));
      for (int64_t j = 0; j < c.keys; ++j) add_token(b, j, key_positions, key_documents, key_indices);
      for (int64_t i = 0; i < c.queries; ++i)
        add_token(b, i + std::max<int64_t>(0, c.keys - c.queries), query_positions, query_documents,
                  query_indices);
    }
  }

  void add_token(int64_t b, int64_t index, std::vector<int32_t>& positions, std::vector<int32_t>& documents,
                 std::vector<int32_t>& indices) const {
    indices.push_back(static_cast<int32_t>(index));
    switch (c.layout) {
      case Layout::causal:
        positions.push_back(static_cast<int32_t>(index));
        documents.push_back(0);
        break;
      case Layout::documents: {  // positions restart in each
        const int64_t length = 23 + 17 * b;
        positions.push_back(static_cast<int32_t>(index % length));
        documents.push_back(static_cast<int32_t>(index / length));
        break;
      }
      case Layout::shuffled: {  // no order at all, repeats, negative ones, two documents in turn
        const RandomKey key(3, RandomPurpose::test, "layout");
        positions.push_back(static_cast<int32_t>(random_word(key, static_cast<uint64_t>(index)) % 200) - 100);
        documents.push_back(static_cast<int32_t>(index % 2));
        break;
      }
    }
  }

  AttentionShape shape() const { return {c.batch, c.queries, c.keys, c.heads, c.key_heads, c.size}; }
  AttentionTokens query_tokens() const {
    return {query_positions.data(), query_documents.data(), query_indices.data()};
  }
  AttentionTokens key_tokens() const {
    return {key_positions.data(), key_documents.data(), key_indices.data()};
  }
  AttentionOptions options() const {
    AttentionOptions o;
    o.scale = scale;
    o.window = c.window;
    o.arithmetic = c.arithmetic;
    o.dropout = {c.probability, 11, 22, 33, 5, samples.data()};
    return o;
  }

  // The outputs in the order out, logsumexp, dq, dk, dv.
  std::vector<Tensor> run(ThreadTeam& team) {
    out = Tensor(c.dtype, q.rows, q.features, c.padding);
    dq = Tensor(c.dtype, q.rows, q.features, c.padding);
    dk = Tensor(c.dtype, k.rows, k.features, c.padding);
    dv = Tensor(c.dtype, v.rows, v.features, c.padding);
    logsumexp = Tensor(DType::fp32, q.rows, c.heads, c.padding);
    computed = forward_and_backward(shape(), options(), query_tokens(), key_tokens(), *this, team);
    return {out, logsumexp, dq, dk, dv};
  }
};

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t row = 0; row < tensor.rows; ++row)
    for (int64_t feature = 0; feature < tensor.features; ++feature)
      values.push_back(tensor.get(row, feature));
  return values;
}

// Plain loops in fp64 over the stored inputs; [rows][features] of out, logsumexp, dq, dk, dv.
struct Reference {
  std::vector<double> values[5];
  double largest[5] = {};

  explicit Reference(const Problem& p) {
    const Case& c = p.c;
    const std::vector<double> q = doubles(p.q), k = doubles(p.k), v = doubles(p.v), dout = doubles(p.dout);
    const Tensor* shapes[5] = {&p.q, nullptr, &p.q, &p.k, &p.v};
    for (int i = 0; i < 5; ++i)
      values[i].assign(
          static_cast<size_t>(i == 1 ? p.q.rows * c.heads : shapes[i]->rows * shapes[i]->features), 0.0);
    const auto at = [](int64_t row, int64_t features, int64_t feature) {
      return static_cast<size_t>(row * features + feature);
    };
    const int64_t group = c.heads / c.key_heads, width = c.heads * c.size, key_width = c.key_heads * c.size;
    const DropoutKey key = dropout_key(11, 22, 33);
    std::vector<double> score(static_cast<size_t>(c.keys)), keep(score.size()), product(score.size());
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.queries; ++i) {
          const int64_t row = b * c.queries + i, column = h * c.size, key_column = h / group * c.size;
          double most = -std::numeric_limits<double>::infinity();
          std::vector<int64_t> visible;
          for (int64_t j = 0; j < c.keys; ++j) {
            const int64_t key_row = b * c.keys + j;
            const auto s = static_cast<size_t>(j), qi = static_cast<size_t>(row),
                       kj = static_cast<size_t>(key_row);
            const int64_t distance = int64_t{p.query_positions[qi]} - p.key_positions[kj];
            if (p.query_documents[qi] != p.key_documents[kj] || distance < 0) continue;
            if (c.window > 0 && distance >= c.window) continue;
            visible.push_back(j);
            score[s] = product[s] = 0;
            for (int64_t e = 0; e < c.size; ++e) {
              const size_t of_query = at(row, width, column + e),
                           of_key = at(key_row, key_width, key_column + e);
              score[s] += q[of_query] * k[of_key] * p.scale;
              product[s] += dout[of_query] * v[of_key];
            }
            most = std::max(most, score[s]);
            keep[s] = 1;
            if (c.probability > 0) {
              const uint32_t word = dropout_word(head_key(key, 5 + h), p.samples[static_cast<size_t>(b)],
                                                 p.query_indices[qi], p.key_indices[kj]);
              keep[s] = word >= dropout_threshold(c.probability) ? dropout_scale(c.probability) : 0;
            }
          }
          double sum = 0, total = 0;
          for (const int64_t j : visible) sum += std::exp(score[static_cast<size_t>(j)] - most);
          values[1][at(row, c.heads, h)] = most + std::log(sum);
          if (visible.empty()) values[1][at(row, c.heads, h)] = most;
          for (const int64_t j : visible) {
            const auto s = static_cast<size_t>(j);
            score[s] = std::exp(score[s] - most) / sum;
            total += score[s] * keep[s] * product[s];
          }
          for (const int64_t j : visible) {
            const auto s = static_cast<size_t>(j);
            const int64_t key_row = b * c.keys + j;
            const double gradient = score[s] * (keep[s] * product[s] - total) * p.scale;
            for (int64_t e = 0; e < c.size; ++e) {
              const size_t of_query = at(row, width, column + e),
                           of_key = at(key_row, key_width, key_column + e);
              values[0][of_query] += score[s] * keep[s] * v[of_key];
              values[2][of_query] += gradient * k[of_key];
              values[3][of_key] += gradient * q[of_query];
              values[4][of_key] += score[s] * keep[s] * dout[of_query];
            }
          }
        }
      }
    }
    for (int i = 0; i < 5; ++i)
      for (const double value : values[i])
        if (std::isfinite(value)) largest[i] = std::max(largest[i], std::abs(value));
  }
};

const char* const output_names[] = {"out", "logsumexp", "dq", "dk", "dv"};

void expect_right(const Problem& problem, const Reference& reference, const std::vector<Tensor>& outputs) {
  const bool dot = problem.c.arithmetic == AttentionArithmetic::dot;
  for (size_t i = 0; i < 5; ++i) {
    const Tensor& tensor = outputs[i];
    // Relative to the largest: fp32 arithmetic. With dot products weights are rounded to bf16; and
    // backward reads `out` rounded to its type.
    double tolerance = 4e-6;
    if (i >= 2) tolerance += 2 * testing::rounding(problem.c.dtype);
    if (dot && i != 1) tolerance += 2 * testing::rounding(DType::bf16);
    const auto expected = [&](int64_t row, int64_t feature) {
      return reference.values[i][static_cast<size_t>(row * tensor.features + feature)];
    };
    expect_close(tensor, expected, 4e-6, tolerance * (reference.largest[i] + 1),
                 problem.c.name() + " " + output_names[i]);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void check_case(const Case& c) {
  Problem problem(c);
  const Reference reference(problem);
  testing::on_every_target(
      [&](ThreadTeam& team) { return problem.run(team); },
      [&](const std::vector<Tensor>& outputs) { expect_right(problem, reference, outputs); });
}

// Every way to compute that this machine has for `dtype`.
std::vector<AttentionArithmetic> arithmetics(DType dtype) {
  if (dtype == DType::bf16 && bf16_dot_supported())
    return {AttentionArithmetic::convert, AttentionArithmetic::dot};
  return {AttentionArithmetic::convert};
}

void check_types(Case c) {
  for (const DType dtype : testing::storage_types) {
    for (const AttentionArithmetic arithmetic : arithmetics(dtype)) {
      c.dtype = dtype;
      c.arithmetic = arithmetic;
      check_case(c);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Attention, Lengths) {
  for (const int64_t length : {1, 7, 16, 33, 64, 130}) {
    check_types({.batch = 2, .queries = length, .keys = length, .heads = 2, .key_heads = 2, .size = 16});
  }
}

TEST(Attention, HeadSizes) {
  for (const int64_t size : {1, 7, 16, 33, 64, 80, 96, 128, 256}) {
    check_types({.queries = 70, .keys = 70, .size = size, .padding = 3});
  }
}

TEST(Attention, GroupedQueries) {
  check_types({.batch = 2, .queries = 66, .keys = 66, .heads = 6, .key_heads = 2, .size = 24, .padding = 8});
  check_types({.batch = 1, .queries = 131, .keys = 131, .heads = 4, .key_heads = 1, .size = 7});
}

TEST(Attention, Windows) {
  for (const int64_t window :
       {int64_t{1}, int64_t{5}, int64_t{64}, int64_t{100}, std::numeric_limits<int64_t>::max()}) {
    check_types({.queries = 199, .keys = 199, .size = 16, .window = window});
  }
}

TEST(Attention, Documents) {
  for (const int64_t window : {0, 10}) {
    check_types(
        {.batch = 2, .queries = 150, .keys = 150, .size = 16, .window = window, .layout = Layout::documents});
  }
}

TEST(Attention, PositionsInAnyOrder) {
  for (const int64_t window : {0, 40}) {
    check_types({.batch = 1,
                 .queries = 140,
                 .keys = 140,
                 .heads = 2,
                 .size = 16,
                 .window = window,
                 .layout = Layout::shuffled});
  }
}

TEST(Attention, MoreKeysThanQueriesAndFewer) {
  check_types({.batch = 2, .queries = 1, .keys = 77, .heads = 4, .key_heads = 2, .size = 32});
  check_types({.batch = 2, .queries = 20, .keys = 131, .size = 32, .window = 50});
  check_types({.batch = 1, .queries = 131, .keys = 20, .size = 32});
}

TEST(Attention, Dropout) {
  check_types(
      {.batch = 2, .queries = 100, .keys = 100, .heads = 4, .key_heads = 2, .size = 16, .probability = 0.2});
  check_types({.batch = 2,
               .queries = 37,
               .keys = 90,
               .size = 16,
               .window = 30,
               .probability = 0.5,
               .layout = Layout::documents});
}

// Several tiles of each kind: backward in chunks that are summed afterwards, and in one with several panels a
// unit.
TEST(Attention, ManyTiles) {
  check_case({.batch = 1, .queries = 400, .keys = 400, .heads = 2, .key_heads = 1, .size = 16});
  check_case({.batch = 16, .queries = 130, .keys = 130, .heads = 8, .key_heads = 8, .size = 3, .padding = 5});
}

TEST(Attention, EmptyShapes) {
  ThreadTeam team(2);
  for (const auto& [batch, queries, keys] : {std::array<int64_t, 3>{0, 5, 5}, {2, 0, 5}, {2, 5, 0}}) {
    Case c{.batch = batch, .queries = queries, .keys = keys};
    Problem problem(c);
    const std::vector<Tensor> outputs = problem.run(team);
    expect_right(problem, Reference(problem), outputs);
  }
}

TEST(Attention, QueriesWithoutKeysGiveZeros) {
  Case c{.batch = 1, .queries = 70, .keys = 70, .size = 16};
  for (const DType dtype : testing::storage_types) {
    for (const AttentionArithmetic arithmetic : arithmetics(dtype)) {
      c.dtype = dtype;
      c.arithmetic = arithmetic;
      Problem problem(c);
      for (size_t i = 0; i < 70; i += 3) problem.query_positions[i] = -1;  // before every key
      const Reference reference(problem);
      testing::on_every_target([&](ThreadTeam& team) { return problem.run(team); },
                               [&](const std::vector<Tensor>& outputs) {
                                 expect_right(problem, reference, outputs);
                                 for (int64_t i = 0; i < 70; i += 3) {
                                   EXPECT_EQ(outputs[1].get(i, 0), -std::numeric_limits<double>::infinity());
                                   for (int64_t e = 0; e < 16; ++e) {
                                     EXPECT_EQ(outputs[0].get(i, e), 0);
                                     EXPECT_EQ(outputs[2].get(i, e), 0);
                                   }
                                 }
                               });
    }
  }
}

// One query, keys with scores 0 and -x, values 0 and 1: out is e^-x / (1 + e^-x), to a few units in the last
// place; and 0 where e^-x would be subnormal.
TEST(Attention, ExponentialsAreAccurate) {
  constexpr int64_t count = 2000;
  Problem problem({.batch = count, .queries = 1, .keys = 2, .size = 1});
  problem.scale = 1;
  for (int64_t b = 0; b < count; ++b) {
    problem.q.set(b, 0, 1);
    problem.k.set(2 * b, 0, 0);
    problem.k.set(2 * b + 1, 0, -0.0456 * static_cast<double>(b));
    problem.v.set(2 * b, 0, 0);
    problem.v.set(2 * b + 1, 0, 1);
    problem.query_positions[static_cast<size_t>(b)] = 1;
  }
  testing::on_every_target([&](ThreadTeam& team) { return problem.run(team); },
                           [&](const std::vector<Tensor>& outputs) {
                             for (int64_t b = 0; b < count; ++b) {
                               const double weight = std::exp(problem.k.get(2 * b + 1, 0));
                               const double expected = weight < std::exp(-87.3) ? 0 : weight / (1 + weight);
                               ASSERT_NEAR(outputs[0].get(b, 0), expected, 3.5 * 0x1p-24 * 2 * expected) << b;
                             }
                           });
}

// Scores far apart and large: the running maximum must carry the sums over blocks.
TEST(Attention, LargeScores) {
  Case c{.queries = 200, .keys = 200, .size = 16};
  Problem problem(c);
  for (int64_t j = 0; j < 200; ++j)
    for (int64_t e = 0; e < 16; ++e) problem.k.set(j, e, problem.k.get(j, e) * (j % 50 == 49 ? 20 : 1));
  const Reference reference(problem);
  ThreadTeam team(2);
  const std::vector<Tensor> outputs = problem.run(team);
  for (size_t i : {size_t{0}, size_t{1}}) {
    const auto expected = [&](int64_t row, int64_t feature) {
      return reference.values[i][static_cast<size_t>(row * outputs[i].features + feature)];
    };
    expect_close(outputs[i], expected, 2e-5, 2e-5, output_names[i]);
  }
}

TEST(Attention, NotANumberIsNotHidden) {
  Case c{.queries = 100, .keys = 100, .size = 16};
  Problem problem(c);
  problem.k.set(20, 3, std::numeric_limits<double>::quiet_NaN());
  testing::on_every_target([&](ThreadTeam& team) { return problem.run(team); },
                           [&](const std::vector<Tensor>& outputs) {
                             for (int64_t i = 0; i < 100; ++i) {
                               EXPECT_EQ(std::isnan(outputs[0].get(i, 0)), i >= 20) << i;
                               EXPECT_EQ(std::isnan(outputs[1].get(i, 0)), i >= 20) << i;
                             }
                           });
}

// Packed documents A and B: nothing of A reaches B, forward or backward, bit for bit.
TEST(Attention, DocumentsDoNotSeeEachOther_P115_) {
  for (const int64_t length : {6, 90, 256}) {
    for (const DType dtype : testing::storage_types) {
      for (const AttentionArithmetic arithmetic : arithmetics(dtype)) {
        Case c{.queries = length, .keys = length, .heads = 2, .key_heads = 1, .size = 16};
        c.dtype = dtype;
        c.arithmetic = arithmetic;
        Problem problem(c);
        const int64_t half = length / 2;
        for (int64_t i = 0; i < length; ++i) {
          const auto at = static_cast<size_t>(i);
          problem.query_documents[at] = problem.key_documents[at] = i < half ? 0 : 1;
          problem.query_positions[at] = problem.key_positions[at] =
              static_cast<int32_t>(i < half ? i : i - half);
        }
        Problem changed = problem;
        for (Tensor* tensor : {&changed.q, &changed.k, &changed.v, &changed.dout}) {
          for (int64_t i = 0; i < half; ++i)
            for (int64_t e = 0; e < tensor->features; ++e) tensor->set(i, e, 3 - tensor->get(i, e));
        }
        std::vector<std::vector<Tensor>> before;
        testing::on_every_target([&](ThreadTeam& team) { return problem.run(team); },
                                 [&](const std::vector<Tensor>& outputs) { before.push_back(outputs); });
        size_t target = 0;
        testing::on_every_target([&](ThreadTeam& team) { return changed.run(team); },
                                 [&](const std::vector<Tensor>& after) {
                                   for (size_t i = 0; i < 5; ++i) {
                                     for (int64_t row = half; row < length; ++row)
                                       for (int64_t f = 0; f < after[i].features; ++f)
                                         ASSERT_EQ(after[i].get(row, f), before[target][i].get(row, f))
                                             << c.name() << output_names[i];
                                     EXPECT_NE(after[i].get(0, 0), before[target][i].get(0, 0) + 1e-30);
                                   }
                                   ++target;
                                 });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The dropout mask is a function of global coordinates: a query computed alone against the whole key cache
// drops what it drops in the full sequence.
TEST(Attention, DropoutDoesNotDependOnTheTiling) {
  Case c{.queries = 150, .keys = 150, .size = 16, .probability = 0.3};
  Problem whole(c);
  ThreadTeam team(1);
  const std::vector<Tensor> all = whole.run(team);
  c.queries = 1;
  Problem last(c);
  for (int64_t e = 0; e < 16; ++e) last.q.set(0, e, whole.q.get(149, e));
  const std::vector<Tensor> one = last.run(team);
  for (int64_t e = 0; e < 16; ++e) EXPECT_NEAR(one[0].get(0, e), all[0].get(149, e), 1e-6);
}

TEST(Attention, SkipsInvisibleBlocks) {
  ThreadTeam team(2);
  const auto computed = [&](const Case& c) {
    Problem problem(c);
    problem.run(team);
    const int64_t expected = c.heads * visible_blocks(problem.query_tokens(), problem.key_tokens(), c.batch,
                                                      c.queries, c.keys, c.window);
    EXPECT_EQ(problem.computed.forward, expected);
    EXPECT_EQ(problem.computed.backward, expected);
    return expected;
  };
  // 8 x 8 blocks: a triangle; a band of the diagonal and what a window of 64 and 65 reaches.
  Case c{.queries = 512, .keys = 512, .heads = 2, .key_heads = 1, .size = 8};
  EXPECT_EQ(computed(c), 2 * 36);
  c.window = 64;
  EXPECT_EQ(computed(c), 2 * 15);
  c.window = 66;
  EXPECT_EQ(computed(c), 2 * 21);
  c.window = 1;
  EXPECT_EQ(computed(c), 2 * 8);
  c.window = 0;
  c.queries = 1;
  EXPECT_EQ(computed(c), 2 * 8);
}

TEST(Attention, RefusesBadOptions) {
  ThreadTeam team(1);
  const auto refuses = [&](const std::function<void(Case&, Problem*)>& change) {
    Case c{.queries = 4, .keys = 4};
    change(c, nullptr);
    Problem problem(c);
    change(c, &problem);
    EXPECT_THROW(problem.run(team), Error);
  };
  refuses([](Case& c, Problem*) { c.window = -1; });
  refuses([](Case& c, Problem*) { c.probability = 1; });
  refuses([](Case& c, Problem*) { c.size = 257; });
  refuses([](Case& c, Problem*) { c.heads = 3, c.key_heads = 2; });
  refuses([](Case&, Problem* p) {
    if (p != nullptr) p->scale = 0;
  });
  refuses([](Case&, Problem* p) {
    if (p != nullptr) p->scale = std::numeric_limits<double>::quiet_NaN();
  });
}

}  // namespace
}  // namespace athanor::cpu
