#include "athanor/cli/run_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"
#include "athanor/model/model.h"

namespace athanor {
namespace {

const std::string configs = std::string(ATHANOR_SOURCE_DIR) + "/configs/";

void load(RunConfiguration& run, const std::string& file, std::vector<std::string> settings) {
  load_options(run.table, system_files(), {file, std::move(settings), {configs + "models"}});
}

std::string refusal(std::vector<std::string> settings) {
  RunConfiguration run;
  try {
    load(run, "", std::move(settings));
    validate(run.options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return error.what();
  }
  return "accepted";
}

TEST(RunOptions, EveryDefaultIsWithinItsRange) {
  RunConfiguration run;
  for (const OptionRow& row : run.table.rows()) {
    EXPECT_NO_THROW(run.table.at(row.name()).set(row.default_value(), "default")) << row.name();
  }
  EXPECT_NO_THROW(validate(run.options));
}

// A value other than the default for each option: bound to its own field, written and read back.
TEST(RunOptions, EveryOptionIsKeptByTheResolvedConfiguration) {
  RunConfiguration run;
  for (const OptionRow& row : run.table.rows()) {
    OptionValue value = row.default_value();
    if (row.name() == "model.family") {
      value = "llama";
    } else if (row.range().starts_with("one of ")) {
      const std::string choices = row.range().substr(7);
      const std::string first = choices.substr(0, choices.find(',')),
                        last = choices.substr(choices.rfind(' ') + 1);
      value = value == OptionValue(first) ? last : first;
    } else if (auto* flag = std::get_if<bool>(&value)) {
      *flag = !*flag;
    } else if (auto* integer = std::get_if<int64_t>(&value)) {
      *integer += 1;
    } else if (auto* number = std::get_if<double>(&value)) {
      *number = *number == 0 || *number > 2 ? *number + 0.25 : *number / 3;
      if (row.name() == "model.rope_factor" || row.name() == "model.rope_theta" ||
          row.name() == "loss_scale.growth_factor")
        *number = 7.125;
    } else if (auto* text = std::get_if<std::string>(&value)) {
      *text += "x";
    } else if (auto* integers = std::get_if<IntegerList>(&value)) {
      *integers = {3, 0};
    } else if (auto* strings = std::get_if<StringList>(&value)) {
      *strings = {"a", "b"};
    } else {
      value = StringMap{{"a", "b"}};
    }
    ASSERT_NE(value, row.default_value()) << row.name();
    run.table.at(row.name()).set(value, "test");
  }
  RunConfiguration defaults, again;
  std::set<std::string> changed;
  for (const OptionDifference& difference : differences(defaults.table, run.table))
    changed.insert(difference.name);
  for (const OptionRow& row : run.table.rows()) {
    const bool is_kept = row.name() != "model.base" && !row.is_of_each_process();
    EXPECT_EQ(changed.contains(row.name()), is_kept) << row.name();
  }
  apply_toml(again.table, resolved_toml(run.table), "resolved.toml");
  EXPECT_TRUE(differences(run.table, again.table).empty());
  EXPECT_EQ(again.options.model, run.options.model);
  // Where the processes of this run are is nothing that the next ones should keep.
  EXPECT_EQ(run.options.communication.listen, "x");
  EXPECT_EQ(again.options.communication.listen, "");
}

TEST(RunOptions, AFamilySetsDefaultsBeneathAllElse) {
  RunConfiguration run;
  load(run, "", {"model.bias=true", "model.family=llama"});
  EXPECT_EQ(run.options.model.norm, NormKind::rms_norm);
  EXPECT_EQ(run.options.model.positions, PositionKind::rotary);
  EXPECT_FALSE(run.options.model.tied_head);
  EXPECT_TRUE(run.options.model.bias);
  EXPECT_NE(refusal({"model.family=lama"}).find("one of gpt2, llama"), std::string::npos);
}

TEST(RunOptions, UnknownNamesGetTheNearestOne) {
  EXPECT_NE(refusal({"train.learning_rte=1"}).find("did you mean train.learning_rate?"), std::string::npos);
  EXPECT_NE(refusal({"steps=1"}).find("did you mean train.steps?"), std::string::npos);
  EXPECT_NE(refusal({"model.head=1"}).find("did you mean model.heads?"), std::string::npos);
}

TEST(RunOptions, OnlyWhatLeavesTheNumbersAloneMayChangeOnResume) {
  RunConfiguration run;
  for (const char* name :
       {"model.layers", "data.train", "data.sequence_length", "train.seed", "train.precision", "train.batch",
        "train.micro_batch", "train.learning_rate", "optimizer.beta2", "train.steps", "run.kernels",
        "train.head_chunk_tokens", "mesh.replica", "mesh.shard"}) {
    EXPECT_FALSE(run.table.at(name).may_change_on_resume()) << name;
  }
  for (const char* name : {"train.threads", "train.recompute", "run.wall_time_seconds", "validation.every",
                           "checkpoint.every", "sample.length", "debug.dump", "run.name", "spike.policy",
                           "mesh.context", "mesh.tensor", "mesh.zero", "comm.algorithm"}) {
    EXPECT_TRUE(run.table.at(name).may_change_on_resume()) << name;
  }
  for (const OptionRow& row : run.table.rows()) {
    const bool decides = row.name().starts_with("model.") || row.name().starts_with("optimizer.");
    EXPECT_FALSE(decides && row.may_change_on_resume()) << row.name();
  }
}

TEST(RunOptions, ContradictionsAreRefusedByName) {
  const struct {
    std::vector<std::string> settings;
    const char* text;
  } cases[] = {
      {{"run.name=a/b"}, "run.name"},
      {{"run.name="}, "run.name"},
      {{"model.heads=5"}, "model.heads"},
      {{"model.heads=12", "model.key_value_heads=5"}, "model.key_value_heads"},
      {{"train.batch=12"}, "train.batch 12 is not a multiple of train.micro_batch 8"},
      {{"train.batch=16", "mesh.shard=3"},
       "mesh.replica 1 x mesh.shard 3 x train.micro_batch 8 (0 x 24 + 16)"},
      {{"mesh.pipeline=2"}, "mesh.pipeline is 2: pipelines are not there yet"},
      {{"mesh.shard=1M", "mesh.tensor=2"}, "the mesh has 2000000 ranks"},
      {{"mesh.context=16385"}, "mesh.context is 16385, and a ring may have 16384 ranks"},
      {{"mesh.zero=4"}, "mesh.zero"},
      {{"mesh.tensor=8", "model.norm_epsilon=0", "model.query_key_norm=true"}, "model.norm_epsilon"},
      {{"train.batch_ramp_from=8", "train.batch=16"}, "train.batch_ramp_samples"},
      {{"train.minimum_rate=1", "train.learning_rate=0.1"}, "train.minimum_rate"},
      {{"optimizer.trust_low=2", "optimizer.trust_high=1"}, "optimizer.trust_high"},
      {{"validation.use_average=true"}, "optimizer.average_decay"},
  };
  for (const auto& [settings, text] : cases) {
    EXPECT_NE(refusal(settings).find(text), std::string::npos) << settings[0] << ": " << refusal(settings);
  }
}

// The largest values that the rows allow must not overflow anything later.
TEST(RunOptions, SizesBeyondAllMachinesAreRefused) {
  EXPECT_NE(refusal({"model.layers=10000", "model.width=262144", "model.heads=1", "train.micro_batch=1048576",
                     "data.sequence_length=16777216"})
                .find("bytes"),
            std::string::npos);
  EXPECT_NE(refusal({"train.batch=1G", "train.micro_batch=1"}).find("train.micro_batch"), std::string::npos);
  EXPECT_NE(refusal({"train.batch=8000", "train.batch_ramp_from=8", "train.batch_ramp_samples=1M"})
                .find("train.batch_ramp_step"),
            std::string::npos);
  EXPECT_NE(refusal({"train.micro_batch=1M", "data.sequence_length=1024"}).find("a micro-batch of"),
            std::string::npos);
  EXPECT_NE(refusal({"train.micro_batch=1024", "data.sequence_length=1024", "train.head_chunk_tokens=1"})
                .find("train.head_chunk_tokens 1"),
            std::string::npos);
  EXPECT_EQ(refusal({"model.base=mt-530b", "data.sequence_length=2048", "train.micro_batch=1",
                     "train.batch=11200"}),
            "accepted");
}

TEST(ModelConfigurations, HaveThePublishedNumbersOfParameters) {
  const std::pair<const char*, int64_t> published[] = {
      {"gpt2-124m", 124'439'808},    {"gpt2-350m", 354'823'168},    {"gpt2-774m", 774'030'080},
      {"gpt2-1558m", 1'557'611'200}, {"llama-3-8b", 8'030'261'248},
  };
  for (const auto& [name, count] : published) {
    RunConfiguration run;
    load(run, "", {std::string("model.base=") + name});
    EXPECT_EQ(parameter_count(run.options.model).total, count) << name;
  }
  // Known to three digits.
  for (const auto& [name, billions] : {std::pair{"gpt3-175b", 175.0}, std::pair{"mt-530b", 530.0}}) {
    RunConfiguration run;
    load(run, "", {std::string("model.base=") + name});
    EXPECT_NEAR(static_cast<double>(parameter_count(run.options.model).total) / 1e9, billions,
                billions * 0.002);
    EXPECT_EQ(run.options.model.vocabulary, 64000);
  }
  RunConfiguration llama;
  load(llama, "", {"model.base=llama-3-8b"});
  EXPECT_EQ(llama.options.model.rope_theta, 500000);
  EXPECT_EQ(llama.options.model.rope_factor, 8);
  EXPECT_EQ(llama.options.model.key_value_heads, 8);
}

TEST(Configurations, AllLoadAndAreSound) {
  int64_t count = 0;
  for (const char* kind : {"models", "runs"}) {
    for (const std::string& name : system_files().list(configs + kind)) {
      const std::string path = configs + kind + "/" + name;
      RunConfiguration run;
      if (std::string(kind) == "models") {
        load(run, "", {"model.base=" + name.substr(0, name.size() - 5)});
      } else {
        load(run, path, {});
      }
      EXPECT_NO_THROW(validate(run.options)) << path;
      ++count;
    }
  }
  EXPECT_GE(count, 14);
}

}  // namespace
}  // namespace athanor
