#include "athanor/data/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "athanor/base/memory_file_environment.h"
#include "athanor/data/data_test_support.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

using testing::Each;
using testing::ElementsAre;

// Three documents of 5, 3 and 9 tokens; the ids are 100, 101, ... 116.
std::shared_ptr<const TokenSource> three_documents() {
  MemoryFileEnvironment files;
  write_token_file(files, "t", {.vocabulary_size = 257}, [](TokenFileWriter& writer) {
    int32_t id = 100;
    for (const size_t length : {5U, 3U, 9U}) {
      std::vector<int32_t> document(length);
      std::iota(document.begin(), document.end(), id);
      id += static_cast<int32_t>(length);
      writer.append(document);
      writer.end_document();
    }
  });
  return TokenFile::open(files, "t");
}

SampleSet samples_of(BatchOptions options, int64_t sequence_length = 8) {
  auto tokens = three_documents();
  const Sampler sampler({0, tokens->token_count()}, {.sequence_length = sequence_length, .shuffle = false});
  return {std::move(tokens), sampler, options};
}

TEST(Batch, LabelsAreTheNextTokens) {
  const Batch batch = samples_of({}).cut(std::vector<int64_t>{1, 0});
  EXPECT_EQ(batch.samples, 2);
  EXPECT_EQ(batch.sequence_length, 8);
  EXPECT_THAT(batch.token_ids,
              ElementsAre(108, 109, 110, 111, 112, 113, 114, 115, 100, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_THAT(batch.labels,
              ElementsAre(109, 110, 111, 112, 113, 114, 115, 116, 101, 102, 103, 104, 105, 106, 107, 108));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(batch.documents, Each(0));
  EXPECT_THAT(batch.sample_ids, ElementsAre(1, 0));
}

TEST(Batch, DocumentsAreNumberedInTheWindow) {
  const Batch batch = samples_of({.mask_documents = true}).cut(std::vector<int64_t>{0, 1});
  EXPECT_THAT(batch.documents, ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Batch, PositionsBeginAgainWithADocument) {
  const Batch batch = samples_of({.reset_positions = true}, 4).cut(std::vector<int64_t>{1, 2});
  // Tokens 4 to 7 and 8 to 11: a document ends after token 4 and one begins with token 8.
  EXPECT_THAT(batch.positions, ElementsAre(0, 0, 1, 2, 0, 1, 2, 3));
  EXPECT_THAT(batch.documents, Each(0));
}

TEST(Batch, DocumentsCrossShardBorders) {
  const auto stream = std::make_shared<TokenStream>(
      std::vector<std::shared_ptr<const TokenSource>>{three_documents(), three_documents()});
  const SampleSet set(stream, Sampler({13, 34}, {.sequence_length = 20, .shuffle = false}),
                      {.reset_positions = true, .mask_documents = true});
  const Batch batch = set.cut(std::vector<int64_t>{0});
  EXPECT_THAT(batch.token_ids, ElementsAre(113, 114, 115, 116, 100, 101, 102, 103, 104, 105, 106, 107, 108,
                                           109, 110, 111, 112, 113, 114, 115));
  EXPECT_EQ(batch.labels.back(), 116);
  EXPECT_THAT(batch.documents, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Batch, RowsOfNoSampleAreIgnored) {
  const Batch batch = samples_of({}).cut(std::vector<int64_t>{no_sample, 0});
  EXPECT_THAT(std::vector<int32_t>(batch.labels.begin(), batch.labels.begin() + 8), Each(ignored_label));
  EXPECT_EQ(batch.labels[8], 101);
  EXPECT_THAT(std::vector<int32_t>(batch.token_ids.begin(), batch.token_ids.begin() + 8), Each(0));
}

TEST(ValidationBatches, EveryPassIsTheSame) {
  const auto set = std::make_shared<const SampleSet>(samples_of({}, 3));  // 5 samples
  const ValidationBatches all(set, 2, 0);
  EXPECT_EQ(all.sample_count(), 5);
  EXPECT_EQ(all.batch_count(), 3);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(all.batch(0).sample_ids, ElementsAre(0, 1));
    EXPECT_THAT(all.batch(1).sample_ids, ElementsAre(2, 3));
    EXPECT_THAT(all.batch(2).sample_ids, ElementsAre(4, no_sample));
  }
  const ValidationBatches some(set, 2, 3);
  EXPECT_EQ(some.sample_count(), 3);
  EXPECT_THAT(some.batch(1).sample_ids, ElementsAre(2, no_sample));
  EXPECT_EQ(ValidationBatches(set, 2, 1000).sample_count(), 5);
}

TEST(Batch, UnlearnedTokensAreNoLabels) {
  auto tokens = std::make_shared<NumberedTokens>(std::vector<int64_t>{17}, 100,
                                                 std::vector<TokenRange>{{0, 3}, {7, 9}, {16, 17}});
  const SampleSet set(tokens, Sampler({0, 17}, {.sequence_length = 8, .shuffle = false}), {});
  const Batch batch = set.cut(std::vector<int64_t>{0, 1});
  constexpr int32_t none = ignored_label;
  EXPECT_THAT(batch.labels, ElementsAre(none, none, 103, 104, 105, 106, none, none,  //
                                        109, 110, 111, 112, 113, 114, 115, none));
  EXPECT_EQ(batch.token_ids[7], 107);  // read all the same
}

}  // namespace
}  // namespace athanor
