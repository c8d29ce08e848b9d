#include "athanor/kernels/cpu/cross_entropy.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::storage_types;
using testing::Tensor;

struct Options {
  double label_smoothing, z_loss, soft_cap;
};

// One row in double: loss, and its gradient with respect to the logits.
struct Reference {
  Reference(const Tensor& logits, int64_t row, int64_t label, const Options& options) {
    const int64_t v = logits.features;
    std::vector<double> c;
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
    for (int64_t j = 0; j < v; ++j) {
      const double raw = logits.get(row, j);
      c.push_back(options.soft_cap == 0 ? raw : options.soft_cap * std::tanh(raw / options.soft_cap));
      maximum = std::max(maximum, c.back());
      mean += c.back() / static_cast<double>(v);
    }
    for (const double value : c) sum += std::exp(value - maximum);
    const double log_sum = maximum + std::log(sum), eps = options.label_smoothing;
    loss = (1 - eps) * (log_sum - c[static_cast<size_t>(label)]) + options.z_loss * log_sum * log_sum;
    if (eps != 0) loss += eps * (log_sum - mean);
    for (int64_t j = 0; j < v; ++j) {
      const double value = c[static_cast<size_t>(j)], p = std::exp(value - log_sum);
      double d =
          p * (1 + 2 * options.z_loss * log_sum) - eps / static_cast<double>(v) - (j == label ? 1 - eps : 0);
      if (options.soft_cap != 0) d *= 1 - value * value / (options.soft_cap * options.soft_cap);
      gradient.push_back(d);
    }
  }
  double loss;
  std::vector<double> gradient;
};

void check(DType logits_type, DType gradient_type, int64_t rows, int64_t vocabulary, const Options& options) {
  const Tensor logits = Tensor(logits_type, rows, vocabulary, 3).fill("logits", -8, 8);
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < rows; ++row)
    labels.push_back(row % 5 == 3 ? ignored_label
                                  : static_cast<int32_t>((row * 7919 + vocabulary - 1) % vocabulary));
  const double valid = 17, scale = 8;  // N is of the whole step, not of these rows
  on_every_target(
      [&](ThreadTeam& team) {
        const bool in_place = logits_type == gradient_type;
        Tensor loss(DType::fp32, rows, 1), validation(DType::fp32, rows, 1), values = logits;
        Tensor other(gradient_type, rows, vocabulary, 1);
        CrossEntropy a{.rows = rows,
                       .vocabulary = vocabulary,
                       .logits = logits.view(),
                       .labels = labels.data(),
                       .label_smoothing = options.label_smoothing,
                       .z_loss = options.z_loss,
                       .soft_cap = options.soft_cap,
                       .loss_scale = scale,
                       .loss = validation.as<float>()};
        cross_entropy(team, a);  // without a gradient, the number of valid tokens is not needed
        a.valid_tokens = &valid;
        a.logits = values.view();
        a.loss = loss.as<float>();
        a.dlogits = in_place ? values.view() : other.view();
        cross_entropy(team, a);
        return std::vector{loss, validation, in_place ? values : other};
      },
      [&](const std::vector<Tensor>& out) {
        EXPECT_TRUE(out[0].bytes == out[1].bytes) << "the loss depends on whether a gradient is wanted";
        for (int64_t row = 0; row < rows; ++row) {
          const int32_t label = labels[static_cast<size_t>(row)];
          if (label == ignored_label) {
            ASSERT_EQ(out[0].get(row, 0), 0);
            for (int64_t j = 0; j < vocabulary; ++j) ASSERT_EQ(out[2].get(row, j), 0);
            continue;
          }
          const Reference reference(logits, row, label, options);
          ASSERT_NEAR(out[0].get(row, 0), reference.loss, 2e-6 * std::abs(reference.loss) + 3e-6)
              << "row " << row;
          for (int64_t j = 0; j < vocabulary; ++j) {
            const double want = scale / valid * reference.gradient[static_cast<size_t>(j)],
                         got = out[2].get(row, j);
            const double tolerance = (5e-6 + testing::rounding(gradient_type)) * std::abs(want) +
                                     (gradient_type == DType::fp16 ? 0x1p-25 : 0) + 5e-7 * scale / valid;
            ASSERT_NEAR(got, want, tolerance) << "row " << row << " logit " << j;
          }
        }
      });
}

TEST(CrossEntropy, LossAndGradient) {
  const Options plain{0, 0, 0}, smoothed{0.1, 0, 0}, z{0, 1e-3, 0}, capped{0, 0, 5}, all{0.1, 1e-3, 30};
  for (const DType dtype : storage_types) {
    check(dtype, dtype, 0, 7, plain);
    check(dtype, dtype, 1, 1, plain);
    for (const Options& options : {plain, smoothed, z, capped, all}) check(dtype, dtype, 7, 33, options);
    check(dtype, dtype, 2, 50257, all);
    check(dtype, dtype, 2, 50257, plain);
  }
  check(DType::fp32, DType::bf16, 7, 33, all);
  check(DType::bf16, DType::fp32, 33, 7, all);
}

TEST(CrossEntropy, LargeLogitsAndMaskedLogits) {
  // Rows whose maximum comes late or early, a masked first chunk (-inf), and a hopeless label.
  const int64_t v = 5000;
  Tensor logits = Tensor(DType::fp32, 4, v).fill("logits", -1, 1);
  logits.set(0, 4999, 500);
  logits.set(1, 0, 500);
  for (int64_t j = 0; j < 2000; ++j) logits.set(2, j, -std::numeric_limits<double>::infinity());
  logits.set(3, 17, -1e30);
  const int32_t labels[] = {4999, 4, 2500, 17};
  const double valid = 4;
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor loss(DType::fp32, 4, 1), d(DType::fp32, 4, v);
        cross_entropy(team, {.rows = 4,
                             .vocabulary = v,
                             .logits = logits.view(),
                             .labels = labels,
                             .valid_tokens = &valid,
                             .loss = loss.as<float>(),
                             .dlogits = d.view()});
        return std::vector{loss, d};
      },
      [&](const std::vector<Tensor>& out) {
        for (int64_t row = 0; row < 4; ++row) {
          const Reference reference(logits, row, labels[row], {0, 0, 0});
          EXPECT_NEAR(out[0].get(row, 0), reference.loss, 1e-6 * reference.loss + 1e-5) << row;
          for (int64_t j = 0; j < v; ++j)
            ASSERT_NEAR(out[1].get(row, j), reference.gradient[static_cast<size_t>(j)] / 4, 1e-6)
                << row << " " << j;
        }
      });
}

TEST(CrossEntropy, NoValidToken_P08_GivesZerosNotNaN) {
  const Tensor logits = Tensor(DType::bf16, 3, 33).fill("logits");
  const std::vector<int32_t> labels(3, ignored_label);
  ASSERT_EQ(count_valid_tokens(labels.data(), 3), 0);
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor loss(DType::fp32, 3, 1), d(DType::bf16, 3, 33);
        const double valid = 0;
        CrossEntropy a{.rows = 3,
                       .vocabulary = 33,
                       .logits = logits.view(),
                       .labels = labels.data(),
                       .valid_tokens = &valid,
                       .loss = loss.as<float>(),
                       .dlogits = d.view()};
        cross_entropy(team, a);
        Tensor other = d;  // and a label that is valid all the same must not divide by zero either
        const int32_t counted[] = {0, 1, 2};
        a.labels = counted;
        a.dlogits = other.view();
        cross_entropy(team, a);
        return std::vector{d, other};
      },
      [](const std::vector<Tensor>& out) {
        for (const Tensor& d : out) expect_close(d, [](int64_t, int64_t) { return 0.0; }, 0, 0, "dlogits");
      });
}

TEST(CrossEntropy, RefusesLabelsOutsideTheVocabulary) {
  const Tensor logits = Tensor(DType::fp32, 2, 5).fill("logits");
  ThreadTeam team(1);
  float loss[2];
  for (const int32_t bad : {5, -1, -101, std::numeric_limits<int32_t>::max()}) {
    const int32_t labels[] = {0, bad};
    EXPECT_THROW(
        cross_entropy(team,
                      {.rows = 2, .vocabulary = 5, .logits = logits.view(), .labels = labels, .loss = loss}),
        Error);
  }
}

TEST(CrossEntropy, NotANumberReachesTheLoss) {
  Tensor logits = Tensor(DType::fp32, 1, 40).fill("logits");
  logits.set(0, 21, std::numeric_limits<double>::quiet_NaN());
  const int32_t label = 3;
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor loss(DType::fp32, 1, 1);
        cross_entropy(team, {.rows = 1,
                             .vocabulary = 40,
                             .logits = logits.view(),
                             .labels = &label,
                             .loss = loss.as<float>()});
        return std::vector{loss};
      },
      [](const std::vector<Tensor>& out) { EXPECT_TRUE(std::isnan(out[0].get(0, 0))); });
}

}  // namespace
}  // namespace athanor::cpu
