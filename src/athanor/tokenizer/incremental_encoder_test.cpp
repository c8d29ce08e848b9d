#include "athanor/tokenizer/incremental_encoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "athanor/tokenizer/tokenizer_test_support.h"

namespace athanor {
namespace {

TEST(IncrementalEncoder, GivesTheIdsOfTheWholeHoweverTheTextComes) {
  for (const char* name : {"llama3_small", "llama2_small", "metaspace_words", "llama2_normalized"}) {
    const std::shared_ptr<const Tokenizer> tokenizer =
        open_tokenizer(system_files(), test_data(std::string("tokenizers/") + name + ".json"));
    for (const bool special : {false, true}) {
      std::string text = random_bytes(7, 3000) + "<s>x<|end_of_text|>";
      text.append(200000, 'y');
      text += random_bytes(8, 3000);
      const std::vector<int32_t> whole = tokenizer->encode(text, {.special_tokens = special});
      IncrementalEncoder encoder(tokenizer, {.special_tokens = special});
      for (int round = 0; round < 2; ++round) {  // it begins anew after finish()
        std::vector<int32_t> ids;
        for (size_t begin = 0, i = 0; begin < text.size(); ++i) {
          const size_t size = 1 + mix64(i) % 30000;
          encoder.append(std::string_view(text).substr(begin, size), ids);
          begin += size;
        }
        encoder.finish(ids);
        ASSERT_TRUE(ids == whole) << name;
      }
    }
  }
}

TEST(IncrementalEncoder, HoldsLittleBack) {
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(system_files(), "bytes");
  IncrementalEncoder encoder(tokenizer);
  std::vector<int32_t> ids;
  encoder.append(std::string(size_t{1} << 20, 'x'), ids);
  EXPECT_GT(ids.size(), (size_t{1} << 20) - 100);
  encoder.finish(ids);
  EXPECT_EQ(ids.size(), size_t{1} << 20);
  encoder.finish(ids);  // an empty text
  EXPECT_EQ(ids.size(), size_t{1} << 20);
}

}  // namespace
}  // namespace athanor
