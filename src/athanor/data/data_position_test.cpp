#include "athanor/data/data_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error.h"

namespace athanor {
namespace {

DataPosition single() {
  return {.consumed_samples = (int64_t{1} << 40) + 3,
          .sequence_length = 1024,
          .seed = ~uint64_t{0},
          .shuffle = false,
          .sources = {{.name = "train",
                       .weight = "1",
                       .identity = 0xfedcba98U,
                       .range = {5, int64_t{1} << 41},
                       .before = 0,
                       .drawn = (int64_t{1} << 40) + 3}}};
}

DataPosition mix() {
  return {.consumed_samples = 120,
          .sequence_length = 16,
          .seed = 2,
          .packed = true,
          .mix_begin = 20,
          .sources = {{"a", "0.25", 11, {0, 1000}, 10, 35}, {"b", "", 12, {7, 70}, 10, 10}}};
}

// Checkpoints of before there were blends, and of runs without one, hold this text.
TEST(DataPosition, TextOfASingleSourceIsThatOfVersion1) {
  const std::string text = to_text(single());
  EXPECT_EQ(text,
            "data_position 1\nconsumed_samples 1099511627779\ndata_identity 4275878552\nfirst_token 5\n"
            "end_token 2199023255552\nsequence_length 1024\nseed 18446744073709551615\nshuffle 0\n");
  EXPECT_EQ(parse_data_position(text), single());
}

TEST(DataPosition, TextOfAMixComesBack) {
  const std::string text = to_text(mix());
  EXPECT_EQ(
      text,
      "data_position 2\nconsumed_samples 120\nsequence_length 16\nseed 2\nshuffle 1\npacked 1\n"
      "mix_begin 20\nsource a\nweight 0.25\ndata_identity 11\nfirst_token 0\nend_token 1000\nbefore 10\n"
      "drawn 35\nsource b\nweight \ndata_identity 12\nfirst_token 7\nend_token 70\nbefore 10\ndrawn 10\n");
  EXPECT_EQ(parse_data_position(text), mix());
  DataPosition named = single();
  named.sources[0].name = "other";
  EXPECT_TRUE(to_text(named).starts_with("data_position 2\n"));
  EXPECT_EQ(parse_data_position(to_text(named)), named);
}

TEST(DataPosition, DamagedTextIsRefused) {
  for (const std::string& text : {to_text(single()), to_text(mix())}) {
    for (size_t size = 0; size < text.size(); ++size) {
      try {
        // A mix may end behind any of its sources.
        EXPECT_LT(parse_data_position(text.substr(0, size)).sources.size(), 2U);
        EXPECT_TRUE(text.substr(size).starts_with("source "));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::user);
      }
    }
    EXPECT_THROW(parse_data_position(text + "more 1\n"), Error);
  }
  const std::string text = to_text(mix());
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"samples 120", "samples -12"},
                                                        {"samples 120", "samples 12x"},
                                                        {"samples 120", "samples 0120"},
                                                        {"samples 120", "samples 99999999999999999999"},
                                                        {"identity 11", "identity 4294967296"},
                                                        {"shuffle 1", "shuffle 2"},
                                                        {"position 2", "position 3"},
                                                        {"position 2", "position 1"},
                                                        {"\nseed", "\nsead"}}) {
    std::string changed = text;
    const size_t place = changed.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    EXPECT_THROW(parse_data_position(changed.replace(place, from.size(), to)), Error) << to;
  }
}

}  // namespace
}  // namespace athanor
