#include "athanor/kernels/cpu/optimizer.h"

#include <gtest/gtest.h>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

// Members of odd lengths with each role, one longer than two tiles, and a gap between two of them.
BucketTable make_table() {
  BucketTable table;
  const auto add = [&](const char* name, ParameterRole role, int64_t length, double decay, double rate) {
    const int64_t gap = table.members.size() == 2 ? 5 : 0;
    table.members.push_back({.name = name,
                             .shape = {length},
                             .role = role,
                             .offset = table.length() + gap,
                             .weight_decay = decay,
                             .learning_rate_factor = rate});
  };
  add("embedding", ParameterRole::embedding, 33333, 0.1, 1);
  add("norm", ParameterRole::norm, 33, 0, 1);
  add("matrix", ParameterRole::matrix, 1031, 0.1, 0.5);
  add("bias", ParameterRole::bias, 1, 0, 2);
  add("router", ParameterRole::matrix, 1, 0, 1);
  return table;
}

enum class Kind { adamw, sgd, nesterov, lamb, bounded_lamb };

constexpr double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, momentum = 0.9, average_decay = 0.75;
constexpr double clip_factor = 0.5, loss_scale = 4, learning_rate = 0.01;

// One parameter's state in double, advanced element by element as the papers write it.
struct Reference {
  std::vector<double> weight, first, second, average;

  void step(Kind kind, const BucketTable& table, const Tensor& gradient, int64_t number) {
    for (const BucketMember& member : table.members) {
      const double rate = learning_rate * member.learning_rate_factor, decay = member.weight_decay;
      std::vector<double> update;
      double weights = 0, updates = 0;
      for (int64_t e = member.offset; e < member.offset + member.length(); ++e) {
        const auto i = static_cast<size_t>(e);
        const double g = gradient.get(0, e) * clip_factor / loss_scale;
        if (kind == Kind::sgd || kind == Kind::nesterov) {
          const double coupled = g + decay * weight[i];
          first[i] = momentum * first[i] + coupled;
          update.push_back(kind == Kind::nesterov ? coupled + momentum * first[i] : first[i]);
        } else {
          first[i] = beta1 * first[i] + (1 - beta1) * g;
          second[i] = beta2 * second[i] + (1 - beta2) * g * g;
          const double m = first[i] / (1 - std::pow(beta1, static_cast<double>(number)));
          const double v = second[i] / (1 - std::pow(beta2, static_cast<double>(number)));
          update.push_back(m / (std::sqrt(v) + epsilon) + decay * weight[i]);
        }
        weights += weight[i] * weight[i];
        updates += update.back() * update.back();
      }
      double ratio = 1;
      const bool trusts = member.role == ParameterRole::matrix || member.role == ParameterRole::embedding;
      if ((kind == Kind::lamb || kind == Kind::bounded_lamb) && trusts && weights > 0 && updates > 0) {
        ratio = std::sqrt(weights / updates);
        if (kind == Kind::bounded_lamb) ratio = std::min(std::max(ratio, 0.9), 1.1);
      }
      for (int64_t e = member.offset; e < member.offset + member.length(); ++e) {
        const auto i = static_cast<size_t>(e);
        weight[i] -= rate * ratio * update[static_cast<size_t>(e - member.offset)];
        average[i] = average_decay * average[i] + (1 - average_decay) * weight[i];
      }
    }
  }
};

struct State {
  Tensor master, first, second, average, working;
};

void step(ThreadTeam& team, Kind kind, const BucketTiles& tiles, State& state, const Tensor& gradient,
          int64_t number, double skip) {
  const double clip = clip_factor;
  const BucketUpdate update{.gradient = gradient.as<float>(),
                            .clip_factor = &clip,
                            .skip = &skip,
                            .master = state.master.as<float>(),
                            .working = state.working.view().at(0),
                            .average = state.average.as<float>(),
                            .average_decay = average_decay,
                            .learning_rate = learning_rate,
                            .loss_scale = loss_scale};
  const AdamOptions adam{beta1, beta2, epsilon, number};
  float *first = state.first.as<float>(), *second = state.second.as<float>();
  if (kind == Kind::adamw) adamw(team, tiles, update, adam, first, second);
  if (kind == Kind::sgd || kind == Kind::nesterov)
    sgd(team, tiles, update, momentum, kind == Kind::nesterov, first);
  if (kind != Kind::lamb && kind != Kind::bounded_lamb) return;
  const State before = state;
  std::vector<double> norms(2 * static_cast<size_t>(tiles.member_count()));
  lamb_norms(team, tiles, update, adam, first, second, norms.data(),
             scratch_of(lamb_norms_workspace_bytes(state.master.features, tiles.member_count())).data());
  EXPECT_TRUE(state.master.bytes == before.master.bytes && state.first.bytes == before.first.bytes &&
              state.second.bytes == before.second.bytes)
      << "the first pass of LAMB wrote state";
  const bool bounded = kind == Kind::bounded_lamb;
  lamb(team, tiles, update, adam, bounded ? 0.9 : 0, bounded ? 1.1 : 0, norms.data(), first, second);
}

void check_ten_steps(Kind kind, DType working_type) {
  const BucketTable table = make_table();
  const BucketTiles tiles(table);
  const int64_t n = table.length() + 3;
  State initial{Tensor(DType::fp32, 1, n).fill("master"),
                Tensor(DType::fp32, 1, n),
                {},
                {},
                Tensor(working_type, 1, n).fill("working")};
  initial.first.fill("moments", 0, 0);
  initial.second = initial.first;
  initial.average = initial.master;
  Reference reference;
  for (int64_t i = 0; i < n; ++i) reference.weight.push_back(initial.master.get(0, i));
  reference.first.assign(static_cast<size_t>(n), 0);
  reference.second = reference.first;
  reference.average = reference.weight;
  std::vector<Tensor> gradients;
  for (int64_t number = 1; number <= 10; ++number) {
    gradients.push_back(Tensor(DType::fp32, 1, n).fill("gradient " + std::to_string(number)));
    reference.step(kind, table, gradients.back(), number);
  }
  on_every_target(
      [&](ThreadTeam& team) {
        State state = initial;
        for (int64_t number = 1; number <= 10; ++number)
          step(team, kind, tiles, state, gradients[static_cast<size_t>(number - 1)], number, 0);
        return std::vector{state.master, state.first, state.average, state.working};
      },
      [&](const std::vector<Tensor>& out) {
        const auto at = [](const std::vector<double>& values) {
          return [&values](int64_t, int64_t i) { return values[static_cast<size_t>(i)]; };
        };
        expect_close(out[0], at(reference.weight), 3e-6, 1e-6, "master");
        expect_close(out[1], at(reference.first), 3e-6, 1e-6, "first moment");
        expect_close(out[2], at(reference.average), 3e-6, 1e-6, "average");
        const int64_t gap = table.members[2].offset - 5;
        for (int64_t i = 0; i < n; ++i) {
          const bool between = (i >= gap && i < gap + 5) || i >= n - 3;
          if (between) {  // nobody's elements stay as they were
            ASSERT_EQ(out[0].get(0, i), initial.master.get(0, i));
            ASSERT_EQ(out[3].get(0, i), initial.working.get(0, i));
            continue;
          }
          Tensor rounded(working_type, 1, 1);
          rounded.set(0, 0, out[0].get(0, i));
          ASSERT_EQ(out[3].get(0, i), rounded.get(0, 0)) << "working copy " << i;
        }
      });
}

TEST(Optimizer, TenStepsAgreeWithDouble) {
  for (const Kind kind : {Kind::adamw, Kind::sgd, Kind::nesterov, Kind::lamb, Kind::bounded_lamb}) {
    for (const DType working : storage_types) {
      check_ten_steps(kind, working);
      if (working == DType::fp32 && kind != Kind::adamw) break;
    }
  }
}

TEST(Optimizer, SkippedStepWritesNothing) {
  const BucketTable table = make_table();
  const BucketTiles tiles(table);
  const int64_t n = table.length();
  const Tensor bad = Tensor(DType::fp32, 1, n).fill("bad", NAN, NAN);
  const Tensor values = Tensor(DType::fp32, 1, n).fill("values", 0.5, 1);
  ThreadTeam team(2);
  for (const Kind kind : {Kind::adamw, Kind::sgd, Kind::lamb}) {
    State state{values, values, values, values, values};
    step(team, kind, tiles, state, bad, 1, 1);
    for (const Tensor* tensor : {&state.master, &state.first, &state.second, &state.average, &state.working})
      EXPECT_TRUE(tensor->bytes == values.bytes);
  }
}

// Zero gradients, rate 1, decay 0.1: a matrix and an embedding shrink to 0.9 of themselves; norm weight, bias
// and a scalar declared without decay stay, though they all lie in one flat bucket.
TEST(Optimizer, WeightDecay_P133_FollowsTheDeclaredRole) {
  const BucketTable table = make_table();
  const BucketTiles tiles(table);
  const int64_t n = table.length();
  const Tensor zeros = Tensor(DType::fp32, 1, n).fill("zeros", 0, 0);
  const Tensor ones = Tensor(DType::fp32, 1, n).fill("ones", 1, 1);
  for (const Kind kind : {Kind::adamw, Kind::sgd, Kind::lamb}) {
    on_every_target(
        [&](ThreadTeam& team) {
          State state{ones, zeros, zeros, ones, ones};
          const double clip = 1, skip = 0;
          const BucketUpdate update{.gradient = zeros.as<float>(),
                                    .clip_factor = &clip,
                                    .skip = &skip,
                                    .master = state.master.as<float>(),
                                    .learning_rate = 1};
          float *first = state.first.as<float>(), *second = state.second.as<float>();
          std::vector<double> norms(2 * static_cast<size_t>(tiles.member_count()));
          if (kind == Kind::adamw) adamw(team, tiles, update, {}, first, second);
          if (kind == Kind::sgd) sgd(team, tiles, update, momentum, false, first);
          if (kind == Kind::lamb) {
            lamb_norms(team, tiles, update, {}, first, second, norms.data(),
                       scratch_of(lamb_norms_workspace_bytes(n, tiles.member_count())).data());
            lamb(team, tiles, update, {}, 0, 1, norms.data(), first, second);  // a ratio of at most 1
          }
          return std::vector{state.master};
        },
        [&](const std::vector<Tensor>& out) {
          for (const BucketMember& member : table.members) {
            const double want = 1 - member.weight_decay * member.learning_rate_factor;
            for (const int64_t i : {member.offset, member.offset + member.length() - 1})
              EXPECT_NEAR(out[0].get(0, i), want, 1e-6) << member.name;
          }
        });
  }
}

}  // namespace
}  // namespace athanor::cpu
