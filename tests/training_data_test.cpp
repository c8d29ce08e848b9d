// Runs on blends, packed documents and other tokenizers, from text to checkpoint and back.

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "support/training.h"

namespace athanor {
namespace {

class TrainingData : public testing::Test {
 protected:
  std::string tokens(const std::string& name, int32_t first_id, int64_t count) {
    const std::string path = runs_.folder().path(name);
    write_token_file(system_files(), path, {.vocabulary_size = 257}, [&](TokenFileWriter& writer) {
      for (int64_t i = 0; i < count; ++i) {
        const auto id = static_cast<int32_t>(first_id + (i * i + i / 7) % 50);
        writer.append(std::span(&id, 1), i % 9 != 0);
        if (i % 23 == 22) writer.end_document();
      }
    });
    return path;
  }
  RunOptions blend(const std::string& name) {
    RunOptions options = runs_.options(name);
    options.data.train.clear();
    options.data.blend = {{"a", "0.3:" + tokens("a.tokens", 0, 700)},
                          {"b", "0.7:" + tokens("b.tokens", 100, 3000)}};
    return options;
  }

  TrainingRuns runs_;
};

TEST_F(TrainingData, AnInterruptedBlendGoesOnTheSame) {
  for (const Packing packing : {Packing::stream, Packing::documents}) {
    RunOptions whole = blend(packing == Packing::stream ? "whole" : "whole-packed");
    whole.data.packing = packing;
    runs_.train(whole);
    RunOptions broken = blend(packing == Packing::stream ? "broken" : "broken-packed");
    broken.data.packing = packing;
    // The schedule is laid out for ten steps; a checkpoint on the way is where the second part begins.
    broken.checkpoint.every = 4;
    broken.checkpoint.keep = 5;
    runs_.train(broken);
    const auto expected = runs_.checkpoint(whole, 10);
    EXPECT_NE(expected.at(".position").find("data_position 2"), std::string::npos);
    system_files().remove(runs_.path(broken, "checkpoints/step_00000010.safetensors"));
    system_files().remove(runs_.path(broken, "checkpoints/step_00000008.safetensors"));
    runs_.resume(broken);
    auto actual = runs_.checkpoint(broken, 10);
    actual[".configuration"] = expected.at(".configuration");
    EXPECT_EQ(differences(expected, actual), "");
  }
}

TEST_F(TrainingData, AChangedBlend_P65_GoesOnOnlyWhenAsked) {
  RunOptions options = blend("run");
  options.schedule.kind = ScheduleKind::constant;
  runs_.train(options);
  options.steps = 20;
  options.data.blend["c"] = "1:" + tokens("c.tokens", 200, 900);
  options.resume = true;
  const std::string refused = runs_.error_of(options);
  EXPECT_NE(refused.find("c weight: saved not in the mix, now 1"), std::string::npos) << refused;
  EXPECT_EQ(runs_.checkpoints(options).back(), 10);
  options.data.change = true;
  runs_.resume(options);
  const std::string position = runs_.checkpoint(options, 20).at(".position");
  EXPECT_NE(position.find("mix_begin 20\n"), std::string::npos) << position;  // two samples a step
  EXPECT_NE(position.find("source a\nweight 0.3\n"), std::string::npos) << position;
  EXPECT_NE(position.find("before 6\ndrawn 9\n"), std::string::npos) << position;    // a: 0.3 and 0.15
  EXPECT_NE(position.find("before 14\ndrawn 21\n"), std::string::npos) << position;  // b
  EXPECT_NE(position.find("before 0\ndrawn 10\n"), std::string::npos) << position;   // c
  options.steps = 22;
  options.data.change = false;
  runs_.resume(options);  // with the mix it was saved with
  EXPECT_EQ(runs_.checkpoints(options).back(), 22);
}

TEST_F(TrainingData, RunFolderAndCheckpointKeepTheTokenizer) {
  RunOptions options = runs_.options("run");
  options.sample.length = 5;
  runs_.train(options);
  EXPECT_NE(runs_.screen().find("the model writes"), std::string::npos);
  const auto kept = open_tokenizer(system_files(), runs_.path(options, "tokenizer.json"));
  EXPECT_EQ(kept->identity(), open_tokenizer(system_files(), "bytes")->identity());
  EXPECT_EQ(runs_.checkpoint(options, 10).at(".tokenizer"), runs_.text(options, "tokenizer.json"));
}

}  // namespace
}  // namespace athanor
