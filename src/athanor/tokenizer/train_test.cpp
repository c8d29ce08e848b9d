#include "athanor/tokenizer/train.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {
namespace {

// Documents in parts of `part_bytes`.
class Documents final : public TextSource {
 public:
  Documents(std::vector<std::string> documents, size_t part_bytes)
      : documents_(std::move(documents)), part_bytes_(part_bytes) {}

  Next next(std::string& text) override {
    text.clear();
    if (document_ == documents_.size()) return Next::end;
    const std::string& document = documents_[document_];
    text = document.substr(begin_, part_bytes_);
    begin_ += text.size();
    if (begin_ < document.size()) return Next::part;
    begin_ = 0;
    ++document_;
    return Next::document;
  }

 private:
  std::vector<std::string> documents_;
  size_t part_bytes_, document_ = 0, begin_ = 0;
};

TrainedTokenizer train(const std::vector<std::string>& documents, const TokenizerTrainingOptions& options,
                       size_t part_bytes = 1 << 20) {
  Documents source(documents, part_bytes);
  return train_tokenizer(source, options);
}

std::vector<std::string> random_documents(uint64_t seed, int documents, int words) {
  std::mt19937_64 random(seed);
  std::vector<std::string> result(static_cast<size_t>(documents));
  const std::vector<std::string> marks = {" ", " ", " ", " ", ", ", ".\n", "  ", "\n\n", "'s ", " 12 ", "é "};
  for (std::string& document : result) {
    for (int i = 0; i < words; ++i) {
      const uint64_t number = random() % 40 * (random() % 40);
      for (uint64_t rest = number; rest > 0; rest /= 7) document += "etaoin shr"[rest % 7];
      document += marks[random() % marks.size()];
    }
  }
  return result;
}

std::vector<std::string> lines(const TrainedTokenizer& trained) {
  std::vector<std::string> lines;
  for (const TokenMerge& merge : trained.definition.merges) {
    lines.push_back(fmt::format("{} {} {}", merge.left, merge.right, merge.result));
  }
  return lines;
}

TEST(TrainTokenizer, DependsOnTheDocumentsAlone) {
  std::vector<std::string> documents = random_documents(1, 30, 3000);
  documents.push_back(std::string(3 << 20, 'x'));  // without a place to cut
  TokenizerTrainingOptions options;
  options.vocabulary = 700;
  options.special_tokens = {"<|endoftext|>"};
  const TrainedTokenizer expected = train(documents, options);
  ASSERT_EQ(expected.definition.tokens.size(), 699u);
  EXPECT_GT(expected.words, 1000);

  std::vector<std::string> backwards(documents.rbegin(), documents.rend());
  EXPECT_EQ(lines(train(backwards, options)), lines(expected));
  EXPECT_EQ(lines(train(documents, options, 999)), lines(expected));
  options.threads = 3;
  EXPECT_EQ(lines(train(documents, options, 77777)), lines(expected));
  const TemporaryFolder folder;
  options.files = &system_files();
  options.scratch = folder.path("words");
  options.memory_bytes = 3 << 20;
  EXPECT_EQ(lines(train(backwards, options)), lines(expected));
  EXPECT_TRUE(system_files().list(folder.path()).empty());
}

TEST(TrainTokenizer, WordsEndWithTheirDocument) {
  TokenizerTrainingOptions options;
  options.vocabulary = 300;
  EXPECT_EQ(train({"ab", "ab", "ab"}, options).definition.tokens.size(), 257u);
  EXPECT_EQ(train({"ababab"}, options).definition.tokens.size(), 259u);
  EXPECT_EQ(train({}, options).definition.tokens.size(), 256u);
  EXPECT_EQ(train({"", ""}, options).text_bytes, 0);
}

// The result is a tokenizer like any other: it keeps every byte, and other programs' form keeps every id.
TEST(TrainTokenizer, MakesATokenizer) {
  const TemporaryFolder folder;
  const std::vector<std::string> documents = random_documents(2, 3, 2000);
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3}) {
    TokenizerTrainingOptions options;
    options.vocabulary = 500;
    options.pattern = pattern;
    options.special_tokens = {"<|end|>", "<|pad|>"};
    const Tokenizer tokenizer(train(documents, options).definition);
    EXPECT_EQ(tokenizer.vocabulary_size(), 500);
    EXPECT_EQ(tokenizer.end_of_text(), 498);
    EXPECT_EQ(tokenizer.token_bytes(499), "<|pad|>");
    const std::vector<int32_t> ids = tokenizer.encode(documents[0]);
    EXPECT_EQ(tokenizer.decode(ids), documents[0]);
    EXPECT_LT(ids.size() * 2, documents[0].size());

    tokenizer.save(system_files(), folder.path("tokenizer.json"));
    const auto opened = open_tokenizer(system_files(), folder.path("tokenizer.json"));
    EXPECT_EQ(opened->identity(), tokenizer.identity());
    EXPECT_EQ(opened->encode(documents[1]), tokenizer.encode(documents[1]));
  }
}

// Encoding text with the learned merges gives back what learning made of it: each word of the text ends up as
// the tokens that a replay of the merges makes of it.
TEST(TrainTokenizer, EncodingReplaysTheMerges) {
  TokenizerTrainingOptions options;
  options.vocabulary = 400;
  const std::vector<std::string> documents = random_documents(3, 1, 3000);
  const TokenizerDefinition definition = train(documents, options).definition;
  std::map<std::string, int32_t> bytes;
  for (int32_t id = 0; id < 256; ++id) bytes[definition.tokens[static_cast<size_t>(id)]] = id;
  std::vector<int32_t> expected;
  for_each_word(SplitPattern::gpt2, documents[0], [&](std::string_view word) {
    std::vector<int32_t> ids;
    for (const char byte : word) ids.push_back(bytes.at(std::string(1, byte)));
    for (const TokenMerge& merge : definition.merges) {
      std::vector<int32_t> next;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && ids[i] == merge.left && ids[i + 1] == merge.right;
        next.push_back(here ? merge.result : ids[i]);
        i += here ? 1 : 0;
      }
      ids = next;
    }
    expected.insert(expected.end(), ids.begin(), ids.end());
  });
  EXPECT_EQ(Tokenizer(definition).encode(documents[0]), expected);
}

TEST(TrainTokenizer, SpecialTokensAreNotLearned) {
  std::vector<std::string> documents(50, "<|x|><|x|> <|x|>");
  TokenizerTrainingOptions options;
  options.vocabulary = 300;
  options.special_tokens = {"<|x|>"};
  const TokenizerDefinition definition = train(documents, options).definition;
  EXPECT_EQ(std::count(definition.tokens.begin(), definition.tokens.end(), "<|x|>"), 0);
  EXPECT_EQ(Tokenizer(definition).decode(Tokenizer(definition).encode(documents[0])), documents[0]);
}

TEST(TrainTokenizer, RefusesOptionsThatDoNotGoTogether) {
  TokenizerTrainingOptions options;
  options.vocabulary = 255;
  EXPECT_THROW(train({}, options), Error);
  options.vocabulary = 256;
  EXPECT_EQ(train({"aaaa"}, options).definition.merges.size(), 0u);
  options.special_tokens = {"<|a|>"};
  EXPECT_THROW(train({}, options), Error);
  options.vocabulary = 300;
  options.special_tokens = {"<|a|>", "<|a|>"};
  EXPECT_THROW(train({}, options), Error);
  for (const std::string& token : {std::string("a"), std::string(1025, 'a'), std::string("<\xff>")}) {
    options.special_tokens = {token};
    EXPECT_THROW(train({}, options), Error) << token;
  }
  options.vocabulary = int64_t{1} << 40;
  options.special_tokens = {};
  EXPECT_THROW(train({}, options), Error);
}

TEST(TrainTokenizer, ProgressCanEndIt) {
  TokenizerTrainingOptions options;
  options.vocabulary = 1000;
  options.threads = 2;
  const std::vector<std::string> documents = random_documents(4, 2, 1000);
  for (const int64_t at : {0, 300}) {
    options.progress = [&](const TokenizerTrainingProgress& progress) {
      if (progress.tokens >= at) throw Error(ErrorKind::user, "stopped");
    };
    EXPECT_THROW(train(documents, options), Error) << at;
  }
}

}  // namespace
}  // namespace athanor
