#include "athanor/kernels/cpu/dropout.h"

#include <gtest/gtest.h>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::storage_types;
using testing::Tensor;

struct Batch {
  Batch(int64_t samples, int64_t length) : tokens_per_sample(length) {
    for (int64_t b = 0; b < samples; ++b) ids.push_back((int64_t{1} << 40) + 3 * b);
    for (int64_t t = 0; t < samples * length; ++t) indices.push_back(static_cast<int32_t>(t % length));
  }
  int64_t tokens() const { return static_cast<int64_t>(indices.size()); }
  int64_t tokens_per_sample;
  std::vector<int64_t> ids;
  std::vector<int32_t> indices;
};

TEST(Dropout, FollowsTheCoordinates) {
  const DropoutKey key = dropout_key(7, 0x123456789abcdefULL, 42);
  for (const DType dtype : storage_types) {
    for (const int64_t features : {int64_t{1}, int64_t{7}, int64_t{33}, int64_t{768}, int64_t{50257}}) {
      const Batch batch(features > 1000 ? 1 : 3, features > 1000 ? 1 : 11);
      const Tensor x = Tensor(dtype, batch.tokens(), features, 3).fill("x", 1, 2);
      const Tensor addend = Tensor(DType::fp32, batch.tokens(), features, 1).fill("addend");
      for (const double probability : {0.0, 0.1, 0.9}) {
        on_every_target(
            [&](ThreadTeam& team) {
              Tensor y = x, sum = addend;
              Dropout a{.tokens = batch.tokens(),
                        .features = features,
                        .tokens_per_sample = batch.tokens_per_sample,
                        .x = y.view(),
                        .y = y.view(),
                        .sample_ids = batch.ids.data(),
                        .indices = batch.indices.data(),
                        .key = key,
                        .probability = probability};
              dropout(team, a);
              a.x = x.view();
              a.addend = sum.view();
              a.y = sum.view();
              dropout(team, a);
              return std::vector{y, sum};
            },
            [&](const std::vector<Tensor>& out) {
              const auto kept = [&](int64_t t, int64_t f) {
                const int64_t sample = batch.ids[static_cast<size_t>(t / batch.tokens_per_sample)];
                const uint32_t word = dropout_word(key, sample, batch.indices[static_cast<size_t>(t)], f);
                return word < dropout_threshold(probability) ? 0 : x.get(t, f) / (1 - probability);
              };
              expect_close(out[0], kept, 1e-6, 0, "y");
              expect_close(
                  out[1], [&](int64_t t, int64_t f) { return addend.get(t, f) + kept(t, f); }, 1e-6, 1e-6,
                  "sum");
            });
      }
    }
  }
}

TEST(Dropout, KeepsTheStatedShareAndChangesWithTheStep) {
  const Batch batch(2, 64);
  const Tensor x = Tensor(DType::fp32, batch.tokens(), 512).fill("x", 1, 1.5);
  ThreadTeam team(1);
  const auto kept_with = [&](int64_t step) {
    Tensor y = x;
    dropout(team, {.tokens = batch.tokens(),
                   .features = 512,
                   .tokens_per_sample = 64,
                   .x = x.view(),
                   .y = y.view(),
                   .sample_ids = batch.ids.data(),
                   .indices = batch.indices.data(),
                   .key = dropout_key(1, stable_hash("block.0.mlp.dropout"), step),
                   .probability = 0.25});
    std::vector<bool> kept;
    for (int64_t t = 0; t < y.rows; ++t) {
      for (int64_t f = 0; f < 512; ++f) kept.push_back(y.get(t, f) != 0);
    }
    return kept;
  };
  const std::vector<bool> first = kept_with(0), again = kept_with(0), second = kept_with(1);
  EXPECT_TRUE(first == again);
  int64_t count = 0, both = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    count += first[i] ? 1 : 0;
    both += first[i] && second[i] ? 1 : 0;
  }
  const auto elements = static_cast<double>(first.size());
  EXPECT_NEAR(static_cast<double>(count) / elements, 0.75, 0.01);    // 6 standard deviations
  EXPECT_NEAR(static_cast<double>(both) / elements, 0.5625, 0.012);  // independent
}

}  // namespace
}  // namespace athanor::cpu
