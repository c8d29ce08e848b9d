#include "athanor/data/sample_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "athanor/base/error_test_support.h"
#include "athanor/data/data_test_support.h"

namespace athanor {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t sequence = 4;

// `count` samples whose ids begin with `letter` x 100,000.
MixSource source(const std::string& name, const std::string& weight, int64_t count, uint32_t identity = 1,
                 uint64_t seed = 5) {
  const int64_t tokens = count * sequence + 1;
  const int32_t first = (name[0] - 'a') * 100'000;
  return {
      name, weight,
      std::make_shared<const SampleSet>(
          std::make_shared<NumberedTokens>(std::vector<int64_t>{tokens}, first, std::vector<TokenRange>{},
                                           identity),
          Sampler({0, tokens}, {.sequence_length = sequence, .seed = seed, .name = name}), BatchOptions{})};
}

// First tokens of samples [begin, end): letter and place say what was read.
std::vector<int32_t> first_tokens(const SampleMix& mix, int64_t begin, int64_t end) {
  std::vector<int32_t> tokens;
  for (int64_t sample = begin; sample < end; ++sample) {
    const Batch batch = mix.cut(std::vector<int64_t>{sample});
    EXPECT_EQ(batch.sample_ids[0], sample);
    EXPECT_EQ(batch.labels[0], batch.token_ids[0] + 1);
    tokens.push_back(batch.token_ids[0]);
  }
  return tokens;
}

std::map<char, std::vector<int32_t>> by_source(const std::vector<int32_t>& tokens) {
  std::map<char, std::vector<int32_t>> parts;
  for (const int32_t token : tokens) parts[static_cast<char>('a' + token / 100'000)].push_back(token);
  return parts;
}

size_t distinct(const std::vector<int32_t>& tokens) {
  return std::set<int32_t>(tokens.begin(), tokens.end()).size();
}

TEST(SampleMix, EverySourceIsWalkedInItsOwnOrder) {
  const SampleMix mix({source("a", "0.5", 10), source("b", "0.25", 100), source("c", "0.25", 7)});
  const auto parts = by_source(first_tokens(mix, 0, 40));
  EXPECT_EQ(parts.at('a').size(), 20U);
  EXPECT_EQ(parts.at('b').size(), 10U);
  EXPECT_EQ(parts.at('c').size(), 10U);
  // Two epochs of a, each with every sample once; b without repeats; c begins a second epoch.
  const auto& a = parts.at('a');
  EXPECT_EQ(distinct({a.begin(), a.begin() + 10}), 10U);
  EXPECT_EQ(distinct({a.begin() + 10, a.end()}), 10U);
  EXPECT_EQ(distinct(parts.at('b')), 10U);
  EXPECT_EQ(distinct(parts.at('c')), 7U);
  // The order within a source does not depend on the others.
  const SampleMix alone({source("a", "1", 10)});
  EXPECT_EQ(first_tokens(alone, 0, 20), a);
  EXPECT_EQ(mix.most_of(0, 40), 20);
  EXPECT_EQ(mix.most_of(1, 41), 11);
  EXPECT_EQ(mix.vocabulary_size(), 200'000 + 7 * sequence + 2);
  // Any batch, in any order.
  const Batch batch = mix.cut(std::vector<int64_t>{33, no_sample, 2});
  const auto all = first_tokens(mix, 0, 40);
  EXPECT_EQ(batch.token_ids[0], all[33]);
  EXPECT_EQ(batch.token_ids[4], 0);
  EXPECT_EQ(batch.labels[4], ignored_label);
  EXPECT_EQ(batch.token_ids[8], all[2]);
}

TEST(SampleMix, SmallSourcesWrap_P51_EveryIndexIsInRange) {
  const SampleMix mix({source("a", "0.001", 100), source("b", "0.999", 100)});
  const auto parts = by_source(first_tokens(mix, 0, 150));
  EXPECT_LE(parts.contains('a') ? parts.at('a').size() : 0, 1U);
  const auto& b = parts.at('b');
  ASSERT_GE(b.size(), 149U);
  EXPECT_EQ(distinct({b.begin(), b.begin() + 100}), 100U);  // then an epoch of its own order
  const SampleMix three({source("a", "0.5", 100), source("b", "1e-9", 100), source("c", "0.5", 100)});
  const auto drawn = by_source(first_tokens(three, 0, 150));
  EXPECT_EQ(drawn.at('a').size(), 75U);
  EXPECT_EQ(drawn.at('c').size(), 75U);
  EXPECT_FALSE(drawn.contains('b'));
}

TEST(SampleMix, GoesOnAfterAResume) {
  const SampleMix mix({source("a", "0.5", 10), source("b", "0.3", 100), source("c", "0.2", 7)});
  const auto whole = first_tokens(mix, 0, 60);
  for (const int64_t place : {0, 1, 17, 40}) {
    const std::string text = to_text(mix.position(place));
    const SampleMix later = mix.resumed(parse_data_position(text), false);
    EXPECT_EQ(first_tokens(later, place, 60), std::vector<int32_t>(whole.begin() + place, whole.end()));
    EXPECT_EQ(to_text(later.position(60)), to_text(mix.position(60)));
  }
}

TEST(SampleMix, AChangedMixIsRefused_P65_UnlessItIsAskedFor) {
  const SampleMix before({source("a", "1", 100), source("b", "1", 100)});
  const SampleMix after({source("a", "1", 100), source("b", "1", 100), source("c", "2", 100)});
  const DataPosition saved = parse_data_position(to_text(before.position(20)));
  EXPECT_THAT(error_of([&] { after.resumed(saved, false); }),
              AllOf(HasSubstr("c weight: saved not in the mix, now 2"), HasSubstr("--change-data")));
  const SampleMix reweighted({source("a", "1", 100), source("b", "3", 100)});
  EXPECT_THAT(error_of([&] { reweighted.resumed(saved, false); }), HasSubstr("b weight: saved 1, now 3"));
  const SampleMix fewer({source("a", "1", 100)});
  EXPECT_THAT(error_of([&] { fewer.resumed(saved, false); }),
              HasSubstr("b weight: saved 1, now not in the mix"));

  const SampleMix changed = after.resumed(saved, true);
  auto tokens = first_tokens(before, 0, 20);
  const auto later = first_tokens(changed, 20, 180);
  const auto counts = by_source(later);
  EXPECT_EQ(counts.at('a').size(), 40U);
  EXPECT_EQ(counts.at('b').size(), 40U);
  EXPECT_EQ(counts.at('c').size(), 80U);
  tokens.insert(tokens.end(), later.begin(), later.end());
  for (const auto& [letter, drawn] : by_source(tokens)) EXPECT_EQ(distinct(drawn), drawn.size()) << letter;

  // Saved and resumed again, and without c: its counter is kept for when it comes back.
  const DataPosition second = parse_data_position(to_text(changed.position(100)));
  const SampleMix same = after.resumed(second, false);
  EXPECT_EQ(first_tokens(same, 100, 180), std::vector<int32_t>(later.begin() + 80, later.end()));
  const SampleMix without = before.resumed(second, true);
  const DataPosition third = parse_data_position(to_text(without.position(140)));
  const SampleMix again = after.resumed(third, true);
  EXPECT_EQ(by_source(first_tokens(again, 140, 160)).at('c')[0],
            by_source(later).at('c')[40]);  // 40 were drawn up to sample 100
  EXPECT_EQ(to_text(before.resumed(third, false).position(140)), to_text(third));
}

TEST(SampleMix, OtherDataUnderTheSameName_P65_IsRefusedAlways) {
  const SampleMix before({source("a", "1", 100, 7), source("b", "1", 100)});
  const DataPosition saved = before.position(20);
  for (const bool allow : {false, true}) {
    const SampleMix other({source("a", "1", 100, 8), source("b", "1", 100)});
    EXPECT_THAT(error_of([&] { other.resumed(saved, allow); }), HasSubstr("a data_identity: saved 7, now 8"));
    const SampleMix longer({source("a", "1", 101, 7), source("b", "1", 100)});
    EXPECT_THAT(error_of([&] { longer.resumed(saved, allow); }),
                HasSubstr("a end_token: saved 401, now 405"));
    const SampleMix seeded({source("a", "1", 100, 7, 6), source("b", "1", 100, 1, 6)});
    EXPECT_THAT(error_of([&] { seeded.resumed(saved, allow); }), HasSubstr("seed: saved 5, now 6"));
  }
  DataPosition wrong = saved;
  wrong.sources[0].drawn += 2;
  wrong.sources[1].drawn -= 2;
  EXPECT_THAT(error_of([&] { before.resumed(wrong, false); }), HasSubstr("cannot have drawn"));
  wrong = saved;
  wrong.mix_begin = 30;
  EXPECT_THAT(error_of([&] { before.resumed(wrong, false); }), HasSubstr("cannot have drawn"));
}

}  // namespace
}  // namespace athanor
