#include "athanor/train/data_sets.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

class DataSetsTest : public testing::Test {
 protected:
  DataSetsTest() {
    options_.data.cache = folder_.path("cache");
    options_.data.sequence_length = 16;
    options_.model.vocabulary = 257;
  }
  std::string text(const std::string& name, int64_t bytes) {
    std::string contents;
    for (int64_t i = 0; i < bytes; ++i) contents += static_cast<char>('a' + (i * i + i / 7) % 26);
    write_file_atomically(system_files(), folder_.path(name), contents);
    return folder_.path(name);
  }
  // `documents` of `length` tokens each.
  std::string tokens(const std::string& name, int64_t documents, int64_t length, int64_t vocabulary = 257) {
    write_token_file(system_files(), folder_.path(name), {.vocabulary_size = vocabulary},
                     [&](TokenFileWriter& out) {
                       for (int64_t d = 0; d < documents; ++d) {
                         std::vector<int32_t> ids;
                         for (int64_t i = 0; i < length; ++i)
                           ids.push_back(static_cast<int32_t>((d * 7 + i) % vocabulary));
                         out.append(ids);
                         out.end_document();
                       }
                     });
    return folder_.path(name);
  }
  DataSets open(int64_t samples = 1) { return open_data_sets(system_files(), options_, samples); }
  std::string refusal(int64_t samples = 1) {
    try {
      open(samples);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      return error.what();
    }
    return "";
  }
  void expect_refused(const std::string& part, int64_t samples = 1) {
    const std::string message = refusal(samples);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("hint: "), std::string::npos) << message;
  }

  TemporaryFolder folder_;
  RunOptions options_;
};

TEST_F(DataSetsTest, CutsTheTailOffForValidation) {
  options_.data.train = text("a.txt", 1000);
  options_.data.validation_fraction = 0.1;
  const DataSets sets = open();
  ASSERT_EQ(sets.validation.size(), 1u);
  EXPECT_EQ(sets.validation[0].name, "validation");
  const TokenRange train = sets.train->sampler().range(),
                   validation = sets.validation[0].samples->sampler().range();
  EXPECT_EQ(train.begin, 0);
  EXPECT_EQ(train.end, validation.begin);
  EXPECT_EQ(validation.end, sets.train->tokens().token_count());
  EXPECT_EQ(validation.size(), sets.train->tokens().token_count() / 10);
  EXPECT_TRUE(sets.train->sampler().options().shuffle);
  EXPECT_FALSE(sets.validation[0].samples->sampler().options().shuffle);
}

TEST_F(DataSetsTest, NamedSetsAndTheirReport) {
  options_.data.train = text("a.txt", 1000);
  options_.data.validation = {{"near", text("b.txt", 200)}, {"far", tokens("c.tokens", 3, 20)}};
  options_.validation.samples = 2;
  const DataSets sets = open(100);
  ASSERT_EQ(sets.validation.size(), 2u);
  EXPECT_EQ(sets.validation[0].name, "far");
  EXPECT_EQ(sets.validation[1].name, "near");
  EXPECT_EQ(sets.validation[0].samples->tokens().token_count(), 60);
  ASSERT_EQ(sets.report.size(), 3u);
  EXPECT_EQ(sets.report[0].substr(0, 7), "train: ");
  EXPECT_EQ(sets.report[1].substr(0, 5), "far: ");
}

// A sample is a window of tokens, not a document: 2000 tokens hold none of 2048.
TEST_F(DataSetsTest, NumbersAreTold_P54_TooManyEpochsAreRefused) {
  options_.data.train = tokens("documents.tokens", 100, 20);
  options_.data.sequence_length = 2048;
  expect_refused("2000 tokens", 100);
  options_.data.sequence_length = 512;  // floor(1999 / 512) = 3 samples
  const std::string report = open(100).report[0];
  for (const char* part : {"100 documents", "2000 tokens", "3 samples", "34 epochs"}) {
    EXPECT_NE(report.find(part), std::string::npos) << report;
  }
  options_.data.max_epochs = 33;
  expect_refused("34 epochs", 100);
  options_.data.max_epochs = 34;
  EXPECT_EQ(refusal(100), "");
  // 100 samples are 33.3 epochs.
  options_.data.max_epochs = 33.25;
  expect_refused("33.25 are allowed", 100);
  options_.data.max_epochs = 33.5;
  EXPECT_EQ(refusal(100), "");
}

TEST_F(DataSetsTest, ShortDataIsRefused_P55_OneTokenMoreThanASequenceIsASample) {
  for (const int64_t count : {0, 1, 16, 17, 18}) {
    options_.data.train = tokens(fmt::format("{}.tokens", count), 1, count);
    if (count <= 16) {
      expect_refused(fmt::format("{} tokens", count));
    } else {
      EXPECT_EQ(open().train->sampler().samples_per_epoch(), 1);
    }
  }
  options_.data.train = text("a.txt", 200);
  options_.data.validation_fraction = 0.05;  // ten tokens
  expect_refused("10 tokens");
}

TEST_F(DataSetsTest, RefusesWhatCannotBeTrainedOn) {
  expect_refused("data.train is not set");
  options_.data.train = folder_.path("none.txt");
  expect_refused("none.txt");
  options_.data.train = tokens("large.tokens", 2, 40, 1000);
  expect_refused("a vocabulary of 257");
  options_.model.vocabulary = 1000;
  EXPECT_EQ(refusal(), "");
  options_.data.validation_fraction = 0.5;
  options_.data.validation = {{"validation", options_.data.train}};
  expect_refused("two validation sets have the name validation");
}

TEST_F(DataSetsTest, ATextBecomesATokenFileOnce) {
  options_.data.train = text("a.txt", 1000);
  open();
  const auto files = system_files().list(options_.data.cache);
  ASSERT_EQ(files.size(), 1u);
  const auto before = system_files().status(options_.data.cache + "/" + files[0])->modified_ns;
  open();
  EXPECT_EQ(system_files().list(options_.data.cache).size(), 1u);
  EXPECT_EQ(system_files().status(options_.data.cache + "/" + files[0])->modified_ns, before);
}

}  // namespace
}  // namespace athanor
