#include "athanor/data/batch_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace athanor {
namespace {

using testing::ElementsAre;

constexpr int32_t largest = std::numeric_limits<int32_t>::max();

// Two rows of three tokens; the second one's last document has the number `last`.
Batch two_rows(int32_t last) {
  Batch batch;
  batch.samples = 2;
  batch.sequence_length = 3;
  batch.sample_ids = {7, 9};
  batch.token_ids = {1, 2, 3, 4, 5, 6};
  batch.labels = {2, 3, 4, 5, 6, 7};
  batch.positions = {0, 1, 2, 0, 0, 1};
  batch.documents = {0, 0, 0, 0, last, last};
  batch.indices = {0, 1, 2, 0, 1, 2};
  return batch;
}

TEST(BatchPart, TakesItsRowsAndPlaces) {
  const Batch part = part_of(two_rows(1), {.samples = 2, .rows = {1, 2}, .places = {{2, 3}, {0, 1}}});
  EXPECT_EQ(part.samples, 1);
  EXPECT_EQ(part.sequence_length, 2);
  EXPECT_THAT(part.sample_ids, ElementsAre(9));
  EXPECT_THAT(part.token_ids, ElementsAre(6, 4));
  EXPECT_THAT(part.labels, ElementsAre(7, 5));
  EXPECT_THAT(part.positions, ElementsAre(1, 0));
  EXPECT_THAT(part.documents, ElementsAre(1, 0));
  EXPECT_THAT(part.indices, ElementsAre(2, 0));
}

TEST(BatchPart, FillsUpWithADocumentOfItsOwn) {
  const Batch part = part_of(two_rows(1), {.samples = 2, .rows = {0, 2}, .places = {{2, 4}}});
  EXPECT_THAT(part.token_ids, ElementsAre(3, 0, 6, 0));
  EXPECT_THAT(part.labels, ElementsAre(4, ignored_label, 7, ignored_label));
  EXPECT_THAT(part.documents, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(part.indices, ElementsAre(2, 3, 2, 3));
}

TEST(BatchPart, FillsUpRowsThatAreFilledUpAlready) {
  const Batch part = part_of(two_rows(largest), {.samples = 2, .rows = {1, 2}, .places = {{2, 4}}});
  EXPECT_THAT(part.documents, ElementsAre(largest, largest));
}

}  // namespace
}  // namespace athanor
