#include "athanor/data/batch_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

namespace athanor {
namespace {

using testing::ElementsAre;

constexpr int32_t largest = std::numeric_limits<int32_t>::max();

// Samples of three tokens: those of sample n are 10 n + 1, 2, 3. The last document has the number `last`.
class ThreeTokens final : public SampleReader {
 public:
  explicit ThreeTokens(int32_t last) : last_(last) {}
  Batch cut(std::span<const int64_t> sample_ids) const override {
    Batch batch = empty_batch(sample_ids, 3);
    for (size_t row = 0; row < sample_ids.size(); ++row) {
      for (size_t place = 0; place < 3; ++place) {
        const auto id = static_cast<int32_t>(10 * sample_ids[row]) + static_cast<int32_t>(place) + 1;
        batch.token_ids[3 * row + place] = id;
        batch.labels[3 * row + place] = id + 1;
        batch.positions[3 * row + place] = std::max(0, static_cast<int32_t>(place) - 1);
        batch.documents[3 * row + place] = place == 0 ? 0 : last_;
      }
    }
    return batch;
  }

 private:
  int32_t last_;
};

// Of samples 7 and 9.
Batch part_of(int32_t last, const BatchPart& part) {
  const std::array<int64_t, 2> ids = {7, 9};
  return PartReader(std::make_shared<const ThreeTokens>(last), part).cut(ids);
}

TEST(BatchPart, TakesItsRowsAndPlaces) {
  const Batch part = part_of(1, {.samples = 2, .rows = {1, 2}, .places = {{2, 3}, {0, 1}}});
  EXPECT_EQ(part.samples, 1);
  EXPECT_EQ(part.sequence_length, 2);
  EXPECT_THAT(part.sample_ids, ElementsAre(9));
  EXPECT_THAT(part.token_ids, ElementsAre(93, 91));
  EXPECT_THAT(part.labels, ElementsAre(94, 92));
  EXPECT_THAT(part.positions, ElementsAre(1, 0));
  EXPECT_THAT(part.documents, ElementsAre(1, 0));
  EXPECT_THAT(part.indices, ElementsAre(2, 0));
}

TEST(BatchPart, FillsUpWithADocumentOfItsOwn) {
  const Batch part = part_of(1, {.samples = 2, .rows = {0, 2}, .places = {{2, 4}}});
  EXPECT_THAT(part.token_ids, ElementsAre(73, 0, 93, 0));
  EXPECT_THAT(part.labels, ElementsAre(74, ignored_label, 94, ignored_label));
  EXPECT_THAT(part.documents, ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(part.indices, ElementsAre(2, 3, 2, 3));
}

// A short sequence on many ranks: what fills it up is longer than itself, and so than a table of positions.
TEST(BatchPart, FillsUpWithAPositionThatEveryModelHas) {
  const Batch part = part_of(1, {.samples = 2, .rows = {1, 2}, .places = {{2, 8}}});
  EXPECT_THAT(part.positions, ElementsAre(1, 0, 0, 0, 0, 0));
  EXPECT_THAT(part.indices, ElementsAre(2, 3, 4, 5, 6, 7));
}

TEST(BatchPart, FillsUpRowsThatAreFilledUpAlready) {
  const Batch part = part_of(largest, {.samples = 2, .rows = {1, 2}, .places = {{2, 4}}});
  EXPECT_THAT(part.documents, ElementsAre(largest, largest));
}

}  // namespace
}  // namespace athanor
