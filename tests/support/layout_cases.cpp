#include "support/layout_cases.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "athanor/model/test_models.h"

namespace athanor {

namespace {

constexpr int32_t most_ranks = 8;
constexpr std::array<const char*, 2> families = {"gpt2", "llama"};

// Each choice by number: value and how it gets into a case.
struct Choice {
  int count;
  void (*set)(LayoutCase& layout, int value);
};
constexpr std::array<Choice, 12> choices = {{
    {2, [](LayoutCase& c, int v) { c.replica = v + 1; }},
    {3, [](LayoutCase& c, int v) { c.shard = v + 1; }},
    {2, [](LayoutCase& c, int v) { c.context = v + 1; }},
    {3, [](LayoutCase& c, int v) { c.tensor = v + 1; }},
    {4, [](LayoutCase& c, int v) { c.zero_stage = v; }},
    {2, [](LayoutCase& c, int v) { c.sequence_parallel = v == 1; }},
    {2, [](LayoutCase& c, int v) { c.form = static_cast<ContextForm>(v); }},
    {2, [](LayoutCase& c, int v) { c.family = families[static_cast<size_t>(v)]; }},
    {3, [](LayoutCase& c, int v) { c.optimizer = static_cast<OptimizerKind>(v); }},
    {3, [](LayoutCase& c, int v) { c.recompute = static_cast<Recompute>(v); }},
    {2, [](LayoutCase& c, int v) { c.micro_batches = v + 1; }},
    {2, [](LayoutCase& c, int v) { c.gather_window = v + 1; }},
}};
constexpr size_t choice_count = choices.size();
using Values = std::array<int, choice_count>;

LayoutCase case_of(const Values& values) {
  LayoutCase layout;
  for (size_t i = 0; i < choice_count; ++i) choices[i].set(layout, values[i]);
  return layout;
}

// First and second choice with their values.
using Pair = std::array<int, 4>;

Pair pair_of(const Values& values, size_t i, size_t j) {
  return {static_cast<int>(i), values[i], static_cast<int>(j), values[j]};
}

bool fits(const Values& values) {
  return case_of(values).ranks() <= most_ranks;
}

// The open pairs that a case would bring, the choices that are not settled taken as they are.
int new_pairs(const Values& values, const std::set<Pair>& open) {
  int count = 0;
  for (size_t i = 0; i < choice_count; ++i) {
    for (size_t j = i + 1; j < choice_count; ++j) count += open.contains(pair_of(values, i, j)) ? 1 : 0;
  }
  return count;
}

}  // namespace

std::string to_text(const LayoutCase& layout) {
  return fmt::format(
      "replica {} shard {} context {} tensor {} zero {}{} {} {} optimizer {} recompute {} micro "
      "{} window {}",
      layout.replica, layout.shard, layout.context, layout.tensor, layout.zero_stage,
      layout.sequence_parallel ? " sequence_parallel" : "",
      layout.form == ContextForm::ring ? "ring" : "all_to_all", layout.family,
      static_cast<int>(layout.optimizer), static_cast<int>(layout.recompute), layout.micro_batches,
      layout.gather_window);
}

std::vector<LayoutCase> pairwise_layouts() {
  std::set<Pair> open;
  for (size_t i = 0; i < choice_count; ++i) {
    for (size_t j = i + 1; j < choice_count; ++j) {
      for (int a = 0; a < choices[i].count; ++a) {
        for (int b = 0; b < choices[j].count; ++b) {
          Values values{};
          values[i] = a;
          values[j] = b;
          if (fits(values)) open.insert(pair_of(values, i, j));
        }
      }
    }
  }
  std::vector<LayoutCase> layouts;
  while (!open.empty()) {
    // From an open pair, every other choice in turn as it brings most, until nothing gets better.
    const Pair first = *open.begin();
    Values values{};
    values[static_cast<size_t>(first[0])] = first[1];
    values[static_cast<size_t>(first[2])] = first[3];
    int best = new_pairs(values, open);
    for (bool better = true; better;) {
      better = false;
      for (size_t i = 0; i < choice_count; ++i) {
        if (static_cast<int>(i) == first[0] || static_cast<int>(i) == first[2]) continue;
        for (int value = 0; value < choices[i].count; ++value) {
          Values other = values;
          other[i] = value;
          const int found = fits(other) ? new_pairs(other, open) : -1;
          if (found <= best) continue;
          best = found;
          values = other;
          better = true;
        }
      }
    }
    for (size_t i = 0; i < choice_count; ++i) {
      for (size_t j = i + 1; j < choice_count; ++j) open.erase(pair_of(values, i, j));
    }
    layouts.push_back(case_of(values));
  }
  return layouts;
}

std::vector<LayoutCase> all_layouts() {
  std::vector<LayoutCase> layouts;
  size_t turn = 0;
  for (LayoutCase c; c.replica <= most_ranks; ++c.replica) {
    for (c.shard = 1; c.replica * c.shard <= most_ranks; ++c.shard) {
      for (c.context = 1; c.replica * c.shard * c.context <= most_ranks; ++c.context) {
        for (c.tensor = 1; c.ranks() <= most_ranks; ++c.tensor) {
          for (int zero = 0; zero <= (c.shard > 1 ? 3 : 0); ++zero) {
            for (const bool sequence_parallel : {false, true}) {
              for (const ContextForm form : {ContextForm::ring, ContextForm::all_to_all}) {
                if ((sequence_parallel && c.tensor == 1) || (form != ContextForm::ring && c.context == 1))
                  continue;
                LayoutCase layout = c;
                layout.zero_stage = zero;
                layout.sequence_parallel = sequence_parallel;
                layout.form = form;
                layout.family = families[turn % 2];
                layout.optimizer = static_cast<OptimizerKind>(turn / 2 % 3);
                layout.recompute = static_cast<Recompute>(turn / 3 % 3);
                layout.micro_batches = 1 + static_cast<int64_t>(turn / 5 % 2);
                layout.gather_window = 1 + static_cast<int32_t>(turn / 7 % 2);
                layouts.push_back(layout);
                ++turn;
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

RunPlan plan_of(const LayoutCase& layout, Precision precision, KernelSet kernels) {
  RunPlan plan;
  ModelConfig& model = plan.engine.model;
  const bool llama = std::string(layout.family) == "llama";
  model = odd_model(layout.family, 2, 96);
  model.dropout = 0.1;
  model.label_smoothing = 0.1;
  model.z_loss = 1e-2;
  model.window = 5;
  model.query_key_norm = llama;
  plan.engine.kernels = kernels;
  plan.engine.seed = 5;
  CompileOptions& compile = plan.engine.compile;
  compile.precision = precision;
  compile.optimizer.maximum_norm = 0.5;
  compile.optimizer.kind = layout.optimizer;
  compile.recompute = layout.recompute;
  compile.layout.mesh.sizes = {1, layout.replica, layout.shard, layout.context, layout.tensor, 1, 1};
  compile.layout.sequence_parallel = layout.sequence_parallel;
  compile.layout.context_form = layout.form;
  compile.zero_stage = layout.zero_stage;
  compile.gather_window = layout.gather_window;
  plan.micro_batches = layout.micro_batches;
  const int64_t data_ranks = layout.replica * layout.shard;
  if (precision == Precision::fp16) plan.loss_scale = 1024;
  plan.samples = 12 % data_ranks == 0 ? 12 : data_ranks;
  plan.sequence_length = 7;
  return plan;
}

RunPlan one_rank(RunPlan plan) {
  plan.engine.compile.layout = {};
  plan.engine.compile.zero_stage = 0;
  return plan;
}

Tolerance bounds_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return {1e-12, 1e-12, 1e-12};
    case Precision::fp32:
      return {1e-6, 1e-5, 1e-4};
    case Precision::fp16:
      return {2e-3, 1e-2, 2e-2};
    case Precision::bf16:
      return {1e-2, 5e-2, 5e-2};
  }
  return {};
}

std::string name_of(Precision precision, KernelSet kernels) {
  constexpr std::array<const char*, 4> names = {"fp64", "fp32", "bf16", "fp16"};
  return fmt::format("{}, {} kernels", names.at(static_cast<size_t>(precision)),
                     kernels == KernelSet::cpu ? "cpu" : "reference");
}

namespace {

double largest_difference(const Tensors& expected, const Tensors& actual) {
  double largest = 0, difference = 0;
  for (const auto& [name, whole] : expected) {
    // The gradient of a key bias is zero but for rounding, which the optimizer amplifies.
    if (name.ends_with("key.bias")) continue;
    const auto& other = actual.at(name);
    for (size_t i = 0; i < whole.size(); ++i) {
      largest = std::max(largest, std::abs(whole[i]));
      const double error = std::abs(whole[i] - other[i]);
      difference = std::isnan(error) ? INFINITY : std::max(difference, error);
    }
  }
  return difference / largest;
}

}  // namespace

void expect_same(const RankRun& expected, const RankRun& actual, const Tolerance& tolerance) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult &a = expected.steps[i], &b = actual.steps[i];
    EXPECT_EQ(a.valid_tokens, b.valid_tokens);
    EXPECT_FALSE(a.skipped || b.skipped) << "step " << i;
    EXPECT_NEAR(a.loss, b.loss, tolerance.loss * a.loss) << "step " << i;
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, tolerance.norm * a.gradient_norm) << "step " << i;
  }
  EXPECT_NEAR(expected.validation[0], actual.validation[0], tolerance.loss * expected.validation[0]);
  EXPECT_LE(largest_difference(expected.weights, actual.weights), tolerance.weights);
}

void expect_same_bits(const RankRun& expected, const RankRun& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(expected.steps[i].loss, actual.steps[i].loss) << "step " << i;
    EXPECT_EQ(expected.steps[i].gradient_norm, actual.steps[i].gradient_norm) << "step " << i;
  }
  EXPECT_EQ(expected.validation, actual.validation);
  for (const auto& [name, values] : expected.weights) EXPECT_TRUE(values == actual.weights.at(name)) << name;
}

}  // namespace athanor
