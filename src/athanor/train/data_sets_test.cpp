#include "athanor/train/data_sets.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/open_tokenizer.h"

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
  const SampleSet& learned = *sets.train->sources().front().samples;
  const TokenRange train = learned.sampler().range(),
                   validation = sets.validation[0].samples->sampler().range();
  EXPECT_EQ(train.begin, 0);
  EXPECT_EQ(train.end, validation.begin);
  EXPECT_EQ(validation.end, learned.tokens().token_count());
  EXPECT_EQ(validation.size(), learned.tokens().token_count() / 10);
  EXPECT_TRUE(learned.sampler().options().shuffle);
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
      EXPECT_EQ(open().train->sources().front().samples->sampler().samples_per_epoch(), 1);
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

const SampleSet& only_source(const DataSets& sets) {
  EXPECT_EQ(sets.train->sources().size(), 1u);
  return *sets.train->sources().front().samples;
}

TEST_F(DataSetsTest, BlendsSources_P51_EpochsAreCountedForEach) {
  options_.data.blend = {{"small", "0.25:" + tokens("a.tokens", 1, 161)},  // 10 samples
                         {"large", "0.75:" + tokens("b.tokens", 1, 16001)},
                         {"never", "1e-9:" + tokens("c.tokens", 1, 17)}};
  const DataSets sets = open(100);
  ASSERT_EQ(sets.train->sources().size(), 3u);
  ASSERT_EQ(sets.report.size(), 3u);
  EXPECT_NE(sets.report[0].find("large (weight 0.75)"), std::string::npos) << sets.report[0];
  EXPECT_NE(sets.report[2].find("25 samples wanted: 3 epochs"), std::string::npos) << sets.report[2];
  options_.data.max_epochs = 2.5;
  EXPECT_EQ(refusal(100), "");  // 24.99... of 10 samples, rounded up
  options_.data.max_epochs = 2.4;
  expect_refused("small: ", 100);
  options_.data.max_epochs = 0;
  options_.data.validation_fraction = 0.2;
  expect_refused("the data set 'never' has 14 tokens");
  options_.data.blend.erase("never");
  const DataSets kept = open();
  ASSERT_EQ(kept.validation.size(), 2u);
  EXPECT_EQ(kept.validation[0].name, "validation-large");
  EXPECT_EQ(kept.validation[1].name, "validation-small");

  options_.data.blend["small"] = "0.25";
  expect_refused("is no weight and data");
  options_.data.blend["small"] = "x:" + tokens("a.tokens", 1, 161);
  expect_refused("data.blend.small: 'x' is no weight");
  options_.data.train = "also";
  expect_refused("both set");
}

TEST_F(DataSetsTest, SplitsByDocument) {
  options_.data.train = tokens("d.tokens", 400, 20);
  options_.data.split = SplitKind::documents;
  options_.data.validation_fraction = 0.1;
  options_.data.test_fraction = 0.2;
  const DataSets sets = open();
  const SampleSet& train = only_source(sets);
  const TokenSource& validation = sets.validation[0].samples->tokens();
  const DocumentSplit split{0.1, 0.2, 1};
  int64_t in_train = 0, in_validation = 0;
  for (int64_t number = 0; number < 400; ++number) {
    in_train += split.part_of(number) == DocumentSplit::Part::train ? 1 : 0;
    in_validation += split.part_of(number) == DocumentSplit::Part::validation ? 1 : 0;
  }
  EXPECT_EQ(train.tokens().document_count(), in_train);
  EXPECT_EQ(validation.document_count(), in_validation);
  EXPECT_GT(in_validation, 10);
  options_.data.split = SplitKind::tail;
  const DataSets tail = open();
  EXPECT_EQ(only_source(tail).sampler().range(), (TokenRange{0, 5600}));
  EXPECT_EQ(tail.validation[0].samples->sampler().range(), (TokenRange{5600, 6400}));
  options_.data.test_fraction = 0.95;
  expect_refused("0.1 for validation and 0.95 for test");
}

TEST_F(DataSetsTest, ReadsOtherFormatsAndFolders) {
  const auto two = [](MegatronWriter& writer) { writer.append(std::vector<int32_t>(100, 7)); };
  system_files().make_directories(folder_.path("set"));
  write_megatron_dataset(system_files(), folder_.path("set/m"), 500, two);
  for (const char* name : {"set/m", "set/m.bin", "set/m.idx", "set", "set/m.*"}) {
    options_.data.train = folder_.path(name);
    EXPECT_EQ(only_source(open()).tokens().token_count(), 100) << name;
  }
  // Ids of a format without vocabulary are compared when they are read.
  write_megatron_dataset(system_files(), folder_.path("set/n"), 500,
                         [](MegatronWriter& writer) { writer.append(std::vector<int32_t>(100, 300)); });
  options_.data.train = folder_.path("set/n");
  try {
    open().train->cut(std::vector<int64_t>{0});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("id 300, but the vocabulary has 257"), std::string::npos);
  }
  options_.data.train = text("a.txt", 100) + "," + text("b.txt", 50);
  EXPECT_EQ(only_source(open()).tokens().token_count(), 152);
  write_file_atomically(system_files(), folder_.path("x.bin"), "not known");
  options_.data.train = folder_.path("x.bin");
  expect_refused("no file of tokens");
}

TEST_F(DataSetsTest, TheTokenizerIsThatOfTheData) {
  options_.data.train = text("a.txt", 100);
  EXPECT_EQ(open().tokenizer->vocabulary_size(), 257);
  options_.data.train = tokens("none.tokens", 1, 40, 200);
  EXPECT_EQ(open().tokenizer, nullptr);  // nobody says what the ids mean

  // Another tokenizer: bytes with one more special token.
  TokenizerDefinition definition = open_tokenizer(system_files(), "bytes")->definition();
  definition.added_tokens.push_back({.id = 257, .content = "<|more|>"});
  const Tokenizer other(definition);
  const std::string path = folder_.path("other.json");
  other.save(system_files(), path);
  options_.model.vocabulary = 258;
  options_.data.train = text("a.txt", 100);
  options_.data.tokenizer = path;
  const DataSets sets = open();
  EXPECT_EQ(sets.tokenizer->identity(), other.identity());
  EXPECT_EQ(only_source(sets).tokens().tokenizer_identity(), other.identity());
  options_.model.vocabulary = 257;
  expect_refused("set model.vocabulary to 258 or more");
  options_.model.vocabulary = 258;

  // A token file that names it, with and without a copy beside it.
  write_token_file(system_files(), folder_.path("o.train.tokens"),
                   {.vocabulary_size = 258, .tokenizer_identity = other.identity()},
                   [](TokenFileWriter& writer) { writer.append(std::vector<int32_t>(50, 7)); });
  options_.data.train = folder_.path("o.train.tokens");
  options_.data.tokenizer = "bytes";
  EXPECT_EQ(open().tokenizer, nullptr);
  other.save(system_files(), folder_.path("o.tokenizer.json"));
  EXPECT_EQ(open().tokenizer->identity(), other.identity());
  options_.data.tokenizer = path;
  EXPECT_EQ(open().tokenizer->identity(), other.identity());
  definition.added_tokens.back().content = "<|less|>";
  Tokenizer(definition).save(system_files(), folder_.path("third.json"));
  options_.data.tokenizer = folder_.path("third.json");
  expect_refused("was made with another tokenizer");

  // Bytes are a tokenizer like any other: they are not blended with tokens of another one.
  options_.data.tokenizer = "bytes";
  options_.data.train.clear();
  options_.data.blend = {{"a", "1:" + folder_.path("o.train.tokens")}, {"b", "1:" + text("a.txt", 100)}};
  expect_refused("the data set b was made with another tokenizer");
}

// Megatron's format names no tokenizer, but a build leaves a copy of it beside the files.
TEST_F(DataSetsTest, ATokenizerBesideFilesThatNameNone) {
  TokenizerDefinition definition = open_tokenizer(system_files(), "bytes")->definition();
  definition.added_tokens.push_back({.id = 257, .content = "<|more|>"});
  const Tokenizer other(definition);
  for (const char* prefix : {"m", "n.train"}) {
    write_megatron_dataset(system_files(), folder_.path(prefix), 258, [](MegatronWriter& writer) {
      writer.append(std::vector<int32_t>(50, 7));
      writer.end_document();
    });
  }
  options_.model.vocabulary = 258;
  options_.data.train = folder_.path("m");
  EXPECT_EQ(open().tokenizer, nullptr);
  other.save(system_files(), folder_.path("m.tokenizer.json"));
  EXPECT_EQ(open().tokenizer->identity(), other.identity());
  options_.data.train = folder_.path("m.idx");
  EXPECT_EQ(open().tokenizer->identity(), other.identity());
  options_.data.train = folder_.path("n.train");
  other.save(system_files(), folder_.path("n.tokenizer.json"));
  EXPECT_EQ(open().tokenizer->identity(), other.identity());
  // What the user says counts.
  definition.added_tokens.back().content = "<|less|>";
  const Tokenizer third(definition);
  options_.data.tokenizer = folder_.path("third.json");
  third.save(system_files(), options_.data.tokenizer);
  EXPECT_EQ(open().tokenizer->identity(), third.identity());
}

TEST_F(DataSetsTest, PackedAndMaskedSamples) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("{{\"prompt\": \"{}\", \"answer\": \"yes\"}}\n", i % 10);
  write_file_atomically(system_files(), folder_.path("c.jsonl"), lines);
  options_.data.train = folder_.path("c.jsonl");
  options_.data.packing = Packing::documents;
  const DataSets sets = open();
  const SampleSet& set = only_source(sets);
  EXPECT_TRUE(set.is_packed());
  EXPECT_EQ(set.sampler().samples_per_epoch(), 13);  // 4 documents of 4 places in each window of 16
  const Batch batch = sets.train->cut(std::vector<int64_t>{0});
  // The prompt is one byte; all that follows it is learned.
  int64_t learned = 0;
  for (const int32_t label : batch.labels) learned += label != ignored_label ? 1 : 0;
  EXPECT_EQ(learned % 4, 0);
  EXPECT_NE(sets.report[0].find("3.8% padding"), std::string::npos) << sets.report[0];
}

}  // namespace
}  // namespace athanor
