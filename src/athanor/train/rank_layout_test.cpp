#include "athanor/train/rank_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "athanor/base/error.h"
#include "athanor/data/loader.h"

namespace athanor {
namespace {

ModelConfig small_model() {
  ModelConfig model = family_defaults("llama");
  model.layers = 1;
  model.width = 8;
  model.heads = 2;
  model.vocabulary = 11;
  return model;
}

LayoutOptions layout(int32_t replica, int32_t shard, int32_t context, int32_t tensor,
                     bool sequence_parallel = false) {
  LayoutOptions options;
  options.mesh.sizes = {1, replica, shard, context, tensor, 1, 1};
  options.sequence_parallel = sequence_parallel;
  return options;
}

// Samples whose tokens say which sample and place they are.
class Numbered final : public SampleReader {
 public:
  explicit Numbered(int64_t length) : length_(length) {}
  Batch cut(std::span<const int64_t> sample_ids) const override {
    Batch batch = empty_batch(sample_ids, length_);
    for (size_t i = 0; i < batch.token_ids.size(); ++i) {
      const int64_t sample = sample_ids[i / static_cast<size_t>(length_)];
      const auto place = static_cast<int32_t>(i % static_cast<size_t>(length_));
      batch.token_ids[i] = static_cast<int32_t>(1000 * sample) + place;
      batch.labels[i] = batch.token_ids[i] + 1;
      batch.positions[i] = place % 3;
      batch.documents[i] = place / 3;
    }
    return batch;
  }

 private:
  int64_t length_;
};

struct Token {
  int32_t id, label, position, document;
  bool operator==(const Token&) const = default;
};
using Tokens = std::map<std::pair<int64_t, int32_t>, Token>;  // by sample and index

// Adds the tokens of a batch; those that are there already must be the same.
void add_tokens(const Batch& batch, Tokens& tokens) {
  ASSERT_EQ(batch.sample_ids.size(), static_cast<size_t>(batch.samples));
  for (size_t i = 0; i < batch.token_ids.size(); ++i) {
    const int64_t sample = batch.sample_ids[i / static_cast<size_t>(batch.sequence_length)];
    const Token token{batch.token_ids[i], batch.labels[i], batch.positions[i], batch.documents[i]};
    const auto [place, added] = tokens.emplace(std::pair(sample, batch.indices[i]), token);
    EXPECT_EQ(place->second, token);
  }
}

Loader loader_of(const LayoutOptions& options, int32_t rank, int64_t micro_batch, int64_t length,
                 int64_t batch, int64_t consumed) {
  const auto samples = std::make_shared<Numbered>(length);
  const BatchPart part = batch_part(small_model(), options, rank, micro_batch, length);
  return {std::make_shared<PartReader>(samples, part),
          {part.samples, 2},
          [batch](int64_t) { return batch; },
          consumed};
}

// What all ranks get in a step, put together, is what one rank gets; each rank's arrays are of the same size,
// ranks of one tensor group get the same.
TEST(RankBatches, TogetherAreTheBatchOfOneRank) {
  constexpr int64_t batch = 24;
  for (const int64_t length : {24, 7, 1}) {
    Tokens expected;
    Loader one = loader_of(layout(1, 1, 1, 1), 0, 3, length, batch, 48);
    for (const Batch& each : one.next().micro_batches) add_tokens(each, expected);
    ASSERT_EQ(expected.size(), static_cast<size_t>(batch * length));
    for (const auto& options :
         {layout(2, 1, 1, 1), layout(1, 4, 1, 1), layout(2, 2, 1, 2), layout(1, 1, 2, 1), layout(1, 1, 3, 1),
          layout(2, 3, 2, 1), layout(1, 2, 2, 3, true), layout(1, 1, 1, 4, true)}) {
      const int64_t data_ranks = options.mesh.data_ranks();
      Tokens found;
      size_t elements = 0;
      for (int32_t rank = 0; rank < options.mesh.ranks(); ++rank) {
        Loader loader = loader_of(options, rank, 2, length, batch, 48);
        const StepBatch step = loader.next();
        EXPECT_EQ(step.first_sample, 48);
        EXPECT_EQ(step.consumed_after(), 72);
        EXPECT_EQ(step.micro_batches.size(), static_cast<size_t>(batch / data_ranks / 2));
        for (const Batch& each : step.micro_batches) {
          EXPECT_EQ(each.samples, 2);
          EXPECT_EQ(each.sequence_length * options.mesh.size(Axis::context),
                    padded_sequence(options, length));
          elements += each.token_ids.size();
          add_tokens(each, found);
        }
      }
      EXPECT_EQ(elements, static_cast<size_t>(batch * padded_sequence(options, length) *
                                              options.mesh.size(Axis::tensor)));
      // What is beyond the samples belongs to a document of its own and has no label.
      Tokens real;
      for (const auto& [place, token] : found) {
        if (place.second < length) {
          real.emplace(place, token);
          continue;
        }
        EXPECT_EQ(token.label, ignored_label);
        EXPECT_EQ(token.document, (length - 1) / 3 + 1);
        EXPECT_EQ(token.position, 0);
      }
      EXPECT_EQ(real, expected);
    }
  }
}

// A rank of axis context has an early and a late piece.
TEST(RankBatches, ContextSlicesAreZigzag) {
  const LayoutOptions options = layout(1, 2, 2, 1);
  Loader loader = loader_of(options, rank_of(options.mesh, {0, 0, 1, 0, 0}), 1, 8, 2, 0);
  const Batch batch = loader.next().micro_batches.front();
  EXPECT_EQ(batch.sample_ids, std::vector<int64_t>{1});
  EXPECT_EQ(batch.indices, (std::vector<int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(batch.token_ids, (std::vector<int32_t>{1000, 1001, 1006, 1007}));
}

// A run of four data ranks goes on with two, five or one: every sample comes once, whatever the ranks.
TEST(RankBatches, P59_ALayoutMayChangeBetweenSteps) {
  for (const LayoutOptions& second : {layout(1, 2, 1, 1), layout(5, 1, 2, 1), layout(1, 1, 1, 1)}) {
    std::multiset<int64_t> seen;
    int64_t consumed = 0;
    for (const LayoutOptions& options : {layout(2, 2, 1, 1), second}) {
      const int64_t data_ranks = options.mesh.data_ranks();
      const int64_t begin = consumed, context = options.mesh.size(Axis::context);
      for (int32_t rank = 0; rank < options.mesh.ranks(); ++rank) {
        Loader loader = loader_of(options, rank, 20 / data_ranks, 4, 20, begin);
        for (int step = 0; step < 2; ++step) {
          const StepBatch batch = loader.next();
          consumed = batch.consumed_after();
          for (const Batch& each : batch.micro_batches) {
            if (rank % context == 0) seen.insert(each.sample_ids.begin(), each.sample_ids.end());
          }
        }
      }
      EXPECT_EQ(consumed, begin + 40);
    }
    ASSERT_EQ(seen.size(), 80U);
    int64_t next = 0;
    for (const int64_t sample : seen) EXPECT_EQ(sample, next++);
  }
}

std::string refusal(const Mesh& mesh, int64_t ranks) {
  try {
    require_ranks(mesh, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return std::string(error.message()) + "; " + error.hint();
  }
  return {};
}

TEST(RankLayout, RefusesAJobOfAnotherSize) {
  const Mesh mesh = layout(1, 2, 1, 2).mesh;
  EXPECT_EQ(refusal(mesh, 4), "");
  EXPECT_EQ(
      refusal(mesh, 6),
      "the job has 6 ranks and the mesh 4 (mesh.replica 1 x mesh.shard 2 x mesh.context 1 x mesh.tensor "
      "2); start 4 ranks, or set mesh.shard=3, or mesh.tensor=3");
  EXPECT_NE(refusal(mesh, 3).find("choose a mesh of 3"), std::string::npos);
}

TEST(RankLayout, RoundsSequencesUp) {
  EXPECT_EQ(padded_sequence(layout(2, 2, 1, 4), 7), 7);
  EXPECT_EQ(padded_sequence(layout(1, 1, 2, 1), 7), 8);
  EXPECT_EQ(padded_sequence(layout(1, 1, 1, 3, true), 7), 9);
  EXPECT_EQ(padded_sequence(layout(1, 1, 2, 3, true), 7), 12);
}

}  // namespace
}  // namespace athanor
