#include "athanor/kernels/cpu/norm.h"

#include <gtest/gtest.h>

#include "athanor/kernels/cpu/column_sum.h"
#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

struct Case {
  NormShape shape;
  int64_t padding;
};
constexpr Case cases[] = {{{0, 1, 33}, 0}, {{1, 1, 1}, 0},   {{7, 1, 33}, 5},    {{70, 1, 64}, 0},
                          {{9, 3, 7}, 4},  {{33, 2, 16}, 0}, {{1, 1, 50257}, 3}, {{131, 1, 130}, 0}};

// A norm in double, over values as they are stored.
// The sum as it is after storing it in a type: what is normalised.
double stored(double value, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
    case DType::fp16:
      return static_cast<double>(static_cast<float>(Float16(static_cast<float>(value))));
    default:
      return static_cast<double>(static_cast<float>(value));
  }
}

struct Reference {
  Reference(const NormShape& norm_shape, bool is_centered, const Tensor& x, const Tensor* addend,
            double epsilon)
      : shape(norm_shape), centered(is_centered) {
    for (int64_t token = 0; token < shape.tokens; ++token) {
      for (int64_t row = 0; row < shape.rows_per_token; ++row) {
        double sum = 0, squares = 0;
        for (int64_t f = 0; f < shape.features; ++f) {
          const int64_t column = row * shape.features + f;
          values.push_back(addend == nullptr
                               ? x.get(token, column)
                               : stored(x.get(token, column) + addend->get(token, column), x.dtype));
          sum += values.back();
        }
        const double center = centered ? sum / static_cast<double>(shape.features) : 0;
        for (int64_t f = 0; f < shape.features; ++f) {
          const double distance = values[values.size() - 1 - static_cast<size_t>(f)] - center;
          squares += distance * distance;
        }
        mean.push_back(center);
        rstd.push_back(1 / std::sqrt(squares / static_cast<double>(shape.features) + epsilon));
      }
    }
  }
  size_t row_of(int64_t token, int64_t column) const {
    return static_cast<size_t>(token * shape.rows_per_token + column / shape.features);
  }
  double value(int64_t token, int64_t column) const {
    return values[static_cast<size_t>(token * shape.token_elements() + column)];
  }
  double normal(int64_t token, int64_t column) const {
    return (value(token, column) - mean[row_of(token, column)]) * rstd[row_of(token, column)];
  }
  NormShape shape;
  bool centered;
  std::vector<double> values, mean, rstd;
};

void check_forward(const Case& c, bool centered, DType x_type, DType y_type, bool with_addend) {
  const NormShape& shape = c.shape;
  const double epsilon = 1e-5;
  const int64_t width = shape.token_elements();
  const Tensor x = Tensor(x_type, shape.tokens, width, c.padding).fill("x", 1, 3);
  const Tensor addend = Tensor(y_type, shape.tokens, width, 2 * c.padding).fill("addend");
  const Tensor weight = Tensor(y_type, 1, shape.features).fill("weight");
  const Tensor bias = Tensor(DType::fp32, 1, shape.features).fill("bias");
  const Reference reference(shape, centered, x, with_addend ? &addend : nullptr, epsilon);
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor y(y_type, shape.tokens, width, c.padding), total = x;
        Tensor mean(DType::fp32, shape.tokens, shape.rows_per_token, 1), rstd = mean;
        NormForward a{
            .shape = shape, .x = x.view(), .weight = weight.view().at(0), .y = y.view(), .epsilon = epsilon};
        if (centered) {
          a.bias = bias.view().at(0);
          a.mean = {mean.as<float>(), mean.stride};
        }
        a.rstd = {rstd.as<float>(), rstd.stride};
        if (with_addend) {  // in place: the sum takes the memory of x
          a.x = total.view();
          a.addend = addend.view();
          a.total = total.view();
        }
        norm(team, a, scratch_of(norm_workspace_bytes(shape, team.size())).data());
        return std::vector{y, rstd, total, mean};
      },
      [&](const std::vector<Tensor>& out) {
        expect_close(
            out[0],
            [&](int64_t t, int64_t f) {
              const int64_t feature = f % shape.features;
              return reference.normal(t, f) * weight.get(0, feature) + (centered ? bias.get(0, feature) : 0);
            },
            2e-5, 2e-5, "y");
        const auto row = [&](int64_t t, int64_t r) { return reference.row_of(t, r * shape.features); };
        expect_close(
            out[1], [&](int64_t t, int64_t r) { return reference.rstd[row(t, r)]; }, 1e-5, 0, "rstd");
        if (centered)
          expect_close(
              out[3], [&](int64_t t, int64_t r) { return reference.mean[row(t, r)]; }, 1e-6, 1e-6, "mean");
        if (with_addend)
          expect_close(out[2], [&](int64_t t, int64_t f) { return reference.value(t, f); }, 1e-7, 0, "total");
      });
}

TEST(Norm, Forward) {
  for (const Case& c : cases) {
    for (const bool centered : {true, false}) {
      for (const bool with_addend : {true, false}) {
        for (const DType dtype : storage_types) check_forward(c, centered, dtype, dtype, with_addend);
        check_forward(c, centered, DType::fp32, DType::bf16, with_addend);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Norm, LargeMeanKeepsItsVariance) {
  // 1000 +- 1: a variance taken as the difference of two squares would be noise.
  const NormShape shape{1, 1, 768};
  Tensor x(DType::fp32, 1, 768), weight(DType::fp32, 1, 768);
  for (int64_t f = 0; f < 768; ++f) {
    x.set(0, f, 1000 + (f % 2 == 0 ? 1 : -1));
    weight.set(0, f, 1);
  }
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor y = x, mean(DType::fp32, 1, 1), rstd = mean;
        norm(team,
             {.shape = shape,
              .x = x.view(),
              .weight = weight.view().at(0),
              .y = y.view(),
              .mean = {mean.as<float>()},
              .rstd = {rstd.as<float>()},
              .epsilon = 1e-5},
             scratch_of(norm_workspace_bytes(shape, team.size())).data());
        return std::vector{y};
      },
      [&](const std::vector<Tensor>& out) {
        expect_close(out[0], [](int64_t, int64_t f) { return f % 2 == 0 ? 1.0 : -1.0; }, 1e-5, 0, "y");
      });
}

void check_gradients(const Case& c, bool centered, DType x_type, DType y_type, bool with_residual) {
  const NormShape& shape = c.shape;
  const int64_t width = shape.token_elements();
  const Tensor x = Tensor(x_type, shape.tokens, width, c.padding).fill("x", 0, 3);
  const Tensor dy = Tensor(y_type, shape.tokens, width, c.padding).fill("dy");
  const Tensor residual = Tensor(x_type, shape.tokens, width, 1).fill("residual");
  const Tensor weight = Tensor(y_type, 1, shape.features).fill("weight");
  const Tensor before = Tensor(DType::fp32, 1, shape.features).fill("before");
  const Reference reference(shape, centered, x, nullptr, 1e-5);
  Tensor mean(DType::fp32, shape.tokens, shape.rows_per_token), rstd = mean;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t r = 0; r < shape.rows_per_token; ++r) {
      mean.set(t, r, reference.mean[reference.row_of(t, r * shape.features)]);
      rstd.set(t, r, reference.rstd[reference.row_of(t, r * shape.features)]);
    }
  }
  const auto g = [&](int64_t t, int64_t f) { return dy.get(t, f) * weight.get(0, f % shape.features); };
  std::vector<double> average, along;  // per row
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t r = 0; r < shape.rows_per_token; ++r) {
      double sum = 0, sum_along = 0;
      for (int64_t f = r * shape.features; f < (r + 1) * shape.features; ++f) {
        sum += g(t, f);
        sum_along += g(t, f) * reference.normal(t, f);
      }
      average.push_back(centered ? sum / static_cast<double>(shape.features) : 0);
      along.push_back(sum_along / static_cast<double>(shape.features));
    }
  }
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor dx(x_type, shape.tokens, width, 2), dweight = before, dbias = before,
                                                   fresh(DType::fp32, 1, shape.features);
        const Statistic<const float> means{centered ? mean.as<float>() : nullptr, shape.rows_per_token};
        const Statistic<const float> rstds{rstd.as<float>(), shape.rows_per_token};
        norm_input_gradient(team,
                            {.shape = shape,
                             .dy = dy.view(),
                             .x = x.view(),
                             .weight = weight.view().at(0),
                             .mean = means,
                             .rstd = rstds,
                             .residual = with_residual ? residual.view() : ConstRows{},
                             .dx = dx.view()},
                            scratch_of(norm_input_gradient_workspace_bytes(shape, team.size())).data());
        NormWeightGradient w{.shape = shape,
                             .dy = dy.view(),
                             .x = x.view(),
                             .mean = means,
                             .rstd = rstds,
                             .dweight = dweight.as<float>(),
                             .dbias = centered ? dbias.as<float>() : nullptr,
                             .accumulate = true};
        const int64_t bytes = norm_weight_gradient_workspace_bytes(shape, team.size());
        norm_weight_gradient(team, w, scratch_of(bytes).data());
        w.dweight = fresh.as<float>();
        w.dbias = nullptr;
        w.accumulate = false;
        norm_weight_gradient(team, w, scratch_of(bytes).data());
        return std::vector{dx, dweight, dbias, fresh};
      },
      [&](const std::vector<Tensor>& out) {
        expect_close(
            out[0],
            [&](int64_t t, int64_t f) {
              const size_t row = reference.row_of(t, f);
              return reference.rstd[row] * (g(t, f) - average[row] - reference.normal(t, f) * along[row]) +
                     (with_residual ? residual.get(t, f) : 0);
            },
            1e-4, shape.features == 1 ? 1e-3 : 5e-5, "dx");
        const auto sum = [&](int64_t feature, bool of_weight) {
          double total = 0;
          for (int64_t t = 0; t < shape.tokens; ++t) {
            for (int64_t f = feature; f < width; f += shape.features)
              total += dy.get(t, f) * (of_weight ? reference.normal(t, f) : 1);
          }
          return total;
        };
        expect_close(
            out[1], [&](int64_t, int64_t f) { return before.get(0, f) + sum(f, true); }, 1e-5, 1e-4,
            "dweight");
        expect_close(out[3], [&](int64_t, int64_t f) { return sum(f, true); }, 1e-5, 1e-4, "dweight, fresh");
        if (centered)
          expect_close(
              out[2], [&](int64_t, int64_t f) { return before.get(0, f) + sum(f, false); }, 1e-5, 1e-5,
              "dbias");
      });
}

TEST(Norm, Gradients) {
  for (const Case& c : cases) {
    for (const bool centered : {true, false}) {
      for (const DType dtype : storage_types) check_gradients(c, centered, dtype, dtype, true);
      check_gradients(c, centered, DType::fp32, DType::bf16, false);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(ColumnSum, AgreesWithPlainSums) {
  for (const DType dtype : storage_types) {
    for (const auto& [tokens, features] :
         {std::pair<int64_t, int64_t>{0, 7}, {1, 1}, {33, 7}, {2100, 33}, {7, 50257}}) {
      const Tensor x = Tensor(dtype, tokens, features, 2).fill("x");
      const Tensor before = Tensor(DType::fp32, 1, features).fill("before");
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor added = before, fresh = before;
            auto scratch = scratch_of(column_sum_workspace_bytes(tokens, features));
            column_sum(team, tokens, features, x.view(), added.as<float>(), true, scratch.data());
            column_sum(team, tokens, features, x.view(), fresh.as<float>(), false, scratch.data());
            return std::vector{added, fresh};
          },
          [&](const std::vector<Tensor>& out) {
            const auto sum = [&](int64_t feature) {
              double total = 0;
              for (int64_t t = 0; t < tokens; ++t) total += x.get(t, feature);
              return total;
            };
            expect_close(
                out[0], [&](int64_t, int64_t f) { return before.get(0, f) + sum(f); }, 1e-6, 1e-5, "added");
            expect_close(out[1], [&](int64_t, int64_t f) { return sum(f); }, 1e-6, 1e-5, "fresh");
          });
    }
  }
}

// bf16 gradients of micro-batches add up in fp32: 1 + 256 * 2^-9 = 1.5, where a bf16 sum would stay at 1.
TEST(ColumnSum, Accumulation_P34_SmallAddendsCount) {
  Tensor x(DType::bf16, 1, 33), sum(DType::fp32, 1, 33);
  on_every_target(
      [&](ThreadTeam& team) {
        const auto scratch = scratch_of(column_sum_workspace_bytes(1, 33));
        for (int step = 0; step <= 256; ++step) {
          for (int64_t f = 0; f < 33; ++f) x.set(0, f, step == 0 ? 1 : 0x1p-9);
          column_sum(team, 1, 33, x.view(), sum.as<float>(), step > 0, scratch.data());
        }
        return std::vector{sum};
      },
      [](const std::vector<Tensor>& out) {
        for (int64_t f = 0; f < 33; ++f) EXPECT_EQ(out[0].get(0, f), 1.5);
      });
}

}  // namespace
}  // namespace athanor::cpu
