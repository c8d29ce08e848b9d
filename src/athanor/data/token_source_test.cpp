#include "athanor/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Documents of given lengths; token t of the file has id t, those in `unlearned` do not count.
std::shared_ptr<const TokenSource> documents(const std::vector<int64_t>& lengths,
                                             const std::function<bool(int64_t)>& unlearned = nullptr,
                                             uint32_t tokenizer = 0) {
  MemoryFileEnvironment files;
  write_token_file(files, "t", {.vocabulary_size = 1000, .tokenizer_identity = tokenizer},
                   [&](TokenFileWriter& writer) {
                     int32_t id = 0;
                     for (const int64_t length : lengths) {
                       for (int64_t i = 0; i < length; ++i, ++id)
                         writer.append(std::span(&id, 1), !(unlearned && unlearned(id)));
                       writer.end_document();
                     }
                   });
  return TokenFile::open(files, "t");
}

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.token_count()));
  source.read(0, ids);
  return ids;
}

// The unlearned tokens of a range, one by one.
std::vector<int64_t> unlearned(const TokenSource& source, TokenRange range) {
  std::vector<int64_t> tokens;
  for (;;) {
    const TokenRange found = source.unlearned_in(range);
    EXPECT_GE(found.begin, range.begin);
    EXPECT_LE(found.end, range.end);
    if (found.size() == 0) {
      EXPECT_EQ(found.begin, range.end);
      return tokens;
    }
    for (int64_t token = found.begin; token < found.end; ++token) tokens.push_back(token);
    range.begin = found.end;
  }
}

TEST(DocumentSubset, HoldsTheChosenDocuments) {
  const auto source = documents({3, 2, 4, 1, 5, 2}, [](int64_t token) { return token % 5 < 2; });
  // 0: 0-2, 1: 3-4, 2: 5-8, 3: 9, 4: 10-14, 5: 15-16.
  const DocumentSubset part(source, [](int64_t number) { return number != 0 && number != 3; });
  EXPECT_THAT(all_of(part), ElementsAre(3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16));
  EXPECT_EQ(part.document_count(), 4);
  const auto ids = all_of(part);
  for (int64_t number = 0; number < 4; ++number) {
    const Document document = part.document(number);
    EXPECT_EQ(document.number, number);
    for (int64_t token = document.begin; token < document.end; ++token) {
      const Document found = part.document_at(token);
      EXPECT_EQ(found.number, number);
      EXPECT_EQ(found.begin, document.begin);
      EXPECT_EQ(found.end, document.end);
      std::vector<int32_t> one(1);
      part.read(token, one);
      EXPECT_EQ(one[0], ids[static_cast<size_t>(token)]);
    }
  }
  EXPECT_EQ(part.document(2).begin, 6);
  // Ids are places in the source, and 5, 6, 10, 11, 15, 16 of those that are left do not count.
  std::vector<int64_t> expected;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] % 5 < 2) expected.push_back(static_cast<int64_t>(i));
  }
  EXPECT_EQ(unlearned(part, {0, part.token_count()}), expected);
  EXPECT_THAT(unlearned(part, {3, 8}), ElementsAre(3, 6, 7));
  EXPECT_NE(part.identity(), source->identity());
  EXPECT_NE(part.identity(), DocumentSubset(source, [](int64_t number) { return number != 0; }).identity());
  const DocumentSubset none(source, [](int64_t) { return false; });
  EXPECT_EQ(none.token_count(), 0);
  EXPECT_EQ(none.document_count(), 0);
}

TEST(TokenStream, PassesOnWhatPartsSay) {
  const auto odd = [](int64_t token) { return token % 2 == 1; };
  const TokenStream stream({documents({2, 2}, odd, 7), documents({}), documents({3}, odd, 7)});
  EXPECT_THAT(unlearned(stream, {0, 7}), ElementsAre(1, 3, 5));
  EXPECT_THAT(unlearned(stream, {2, 5}), ElementsAre(3));
  EXPECT_EQ(stream.document(2).begin, 4);
  EXPECT_EQ(stream.document(2).number, 2);
  EXPECT_EQ(stream.tokenizer_identity(), 7U);
  try {
    const TokenStream mixed({documents({2}, odd, 7), documents({2}, odd, 8)});
    ADD_FAILURE() << "different tokenizers";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("different tokenizers"));
  }
}

TEST(DocumentSplit, EveryDocumentIsInOnePartAndSharesAreMet) {
  const DocumentSplit split{.validation = 0.1, .test = 0.05, .seed = 3};
  constexpr int64_t documents = 200'000;
  std::array<int64_t, 3> counts{};
  for (int64_t number = 0; number < documents; ++number) ++counts[static_cast<size_t>(split.part_of(number))];
  // Six standard deviations of the binomial.
  EXPECT_NEAR(static_cast<double>(counts[1]), 0.1 * documents, 6 * std::sqrt(documents * 0.09));
  EXPECT_NEAR(static_cast<double>(counts[2]), 0.05 * documents, 6 * std::sqrt(documents * 0.0475));
  int64_t moved = 0;
  for (int64_t number = 0; number < 1000; ++number) {
    moved += split.part_of(number) != DocumentSplit{0.1, 0.05, 4}.part_of(number) ? 1 : 0;
  }
  EXPECT_GT(moved, 100);
  EXPECT_EQ((DocumentSplit{}.part_of(5)), DocumentSplit::Part::train);
  validate(split);
  for (const DocumentSplit& wrong : {DocumentSplit{-0.1, 0, 1}, DocumentSplit{0.5, 0.5, 1}}) {
    EXPECT_THROW(validate(wrong), Error);
  }
}

}  // namespace
}  // namespace athanor
