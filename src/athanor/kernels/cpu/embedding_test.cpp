#include "athanor/kernels/cpu/embedding.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

struct Case {
  int64_t tokens, vocabulary, features;
};
constexpr Case cases[] = {{0, 7, 5}, {1, 1, 1}, {33, 7, 33}, {200, 3, 7}, {65, 50257, 3}, {7, 5, 2500}};

std::vector<int32_t> ids_of(const Case& c) {
  std::vector<int32_t> ids;
  const RandomKey key(3, RandomPurpose::test, "ids");
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto block = random_block(key, static_cast<uint64_t>(t));
    ids.push_back(
        static_cast<int32_t>(uniform_below(block[0], block[1], static_cast<uint64_t>(c.vocabulary))));
  }
  return ids;
}

TEST(Embedding, Gathers) {
  for (const DType dtype : storage_types) {
    for (const Case& c : cases) {
      const Tensor table = Tensor(dtype, c.vocabulary, c.features).fill("table");
      const std::vector<int32_t> ids = ids_of(c);
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor same(dtype, c.tokens, c.features, 3), wide(DType::fp32, c.tokens, c.features);
            for (Tensor* y : {&same, &wide}) {
              embedding(team, {.tokens = c.tokens,
                               .vocabulary = c.vocabulary,
                               .features = c.features,
                               .rows = c.vocabulary,
                               .table = table.view(),
                               .ids = ids.data(),
                               .y = y->view()});
            }
            return std::vector{same, wide};
          },
          [&](const std::vector<Tensor>& out) {
            for (const Tensor& y : out) {
              for (int64_t t = 0; t < c.tokens; ++t) {
                for (int64_t f = 0; f < c.features; ++f)
                  ASSERT_EQ(y.get(t, f), table.get(ids[static_cast<size_t>(t)], f));
              }
            }
          });
    }
  }
}

TEST(Embedding, GradientAddsUpByIdInTokenOrder) {
  for (const DType dtype : storage_types) {
    for (const Case& c : cases) {
      const Tensor dy = Tensor(dtype, c.tokens, c.features, 2).fill("dy");
      const Tensor before = Tensor(DType::fp32, c.vocabulary, c.features).fill("before");
      const std::vector<int32_t> ids = ids_of(c);
      std::vector<float> added(static_cast<size_t>(c.vocabulary * c.features)), fresh(added.size(), 0.0F);
      for (size_t i = 0; i < added.size(); ++i) added[i] = before.as<float>()[i];
      for (int64_t t = 0; t < c.tokens; ++t) {
        for (int64_t f = 0; f < c.features; ++f) {
          const auto at = static_cast<size_t>(ids[static_cast<size_t>(t)] * c.features + f);
          added[at] += static_cast<float>(dy.get(t, f));
          fresh[at] += static_cast<float>(dy.get(t, f));
        }
      }
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor one = before, two = before;
            for (const bool accumulate : {true, false}) {
              embedding_gradient(team,
                                 {.tokens = c.tokens,
                                  .vocabulary = c.vocabulary,
                                  .features = c.features,
                                  .rows = c.vocabulary,
                                  .dy = dy.view(),
                                  .ids = ids.data(),
                                  .dtable = (accumulate ? one : two).as<float>(),
                                  .accumulate = accumulate},
                                 scratch_of(embedding_gradient_workspace_bytes(c.tokens)).data());
            }
            return std::vector{one, two};
          },
          [&](const std::vector<Tensor>& out) {  // one order of additions: the very bits
            for (size_t i = 0; i < added.size(); ++i) {
              ASSERT_EQ(out[0].as<float>()[i], added[i]);
              ASSERT_EQ(out[1].as<float>()[i], fresh[i]);
            }
          });
    }
  }
}

// One id 257 times: 1 + 256 * 2^-9 = 1.5, where a bf16 sum would stay at 1.
TEST(Embedding, Accumulation_P34_SmallAddendsCount) {
  Tensor dy(DType::bf16, 257, 3);
  for (int64_t t = 0; t < 257; ++t) {
    for (int64_t f = 0; f < 3; ++f) dy.set(t, f, t == 0 ? 1 : 0x1p-9);
  }
  const std::vector<int32_t> ids(257, 1);
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor dtable(DType::fp32, 2, 3);
        embedding_gradient(team,
                           {.tokens = 257,
                            .vocabulary = 2,
                            .features = 3,
                            .rows = 2,
                            .dy = dy.view(),
                            .ids = ids.data(),
                            .dtable = dtable.as<float>()},
                           scratch_of(embedding_gradient_workspace_bytes(257)).data());
        return std::vector{dtable};
      },
      [](const std::vector<Tensor>& out) {
        expect_close(out[0], [](int64_t row, int64_t) { return row == 1 ? 1.5 : 0; }, 0, 0, "dtable");
      });
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  const Tensor table = Tensor(DType::fp32, 5, 3).fill("table");
  ThreadTeam team(1);
  Tensor y(DType::fp32, 2, 3), dtable = table;
  for (const int32_t bad : {5, -1, -100, 1 << 30}) {
    const int32_t ids[] = {1, bad};
    EXPECT_THROW(
        embedding(
            team,
            {.tokens = 2, .vocabulary = 5, .features = 3, .table = table.view(), .ids = ids, .y = y.view()}),
        Error);
    EXPECT_THROW(embedding_gradient(team,
                                    {.tokens = 2,
                                     .vocabulary = 5,
                                     .features = 3,
                                     .rows = 5,
                                     .dy = y.view(),
                                     .ids = ids,
                                     .dtable = dtable.as<float>()},
                                    scratch_of(embedding_gradient_workspace_bytes(2)).data()),
                 Error);
  }
  EXPECT_TRUE(dtable.bytes == table.bytes) << "written before the ids were checked";
}

}  // namespace
}  // namespace athanor::cpu
