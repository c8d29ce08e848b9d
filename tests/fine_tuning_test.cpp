// Import, export and runs that begin with weights from elsewhere, as a person uses them.

#include <gtest/gtest.h>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "support/program.h"

namespace athanor {
namespace {

class FineTuning : public testing::Test {
 protected:
  FineTuning() {
    std::string text;
    for (int line = 0; line < 300; ++line) {
      text +=
          fmt::format("In the beginning line {} was the word, and {} came after it.\n", line, line * line);
    }
    write_file_atomically(system_files(), folder_.path("text.txt"), text);
  }

  ProgramResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ATHANOR_PROGRAM);
    return run_and_wait(arguments, folder_.path());
  }
  void expect_done(const std::vector<std::string>& arguments) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }
  void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message << "\n" << result.errors << result.output;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
    EXPECT_NE(result.errors.find("hint: "), std::string::npos) << result.errors;
  }
  // A run of seconds over text.txt; without `model` in the settings it is that of the source.
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& settings) const {
    std::vector<std::string> arguments = {"train"};
    for (const std::string& setting :
         {std::string("data.train=text.txt"), "run.name=" + name, std::string("train.steps=4"),
          std::string("run.measure_peak=false"), std::string("train.schedule=constant"),
          std::string("train.micro_batch=2"), std::string("data.sequence_length=16"),
          std::string("train.learning_rate=0.01"), std::string("train.threads=1")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  std::vector<std::string> resume(const std::string& name, const std::vector<std::string>& settings) const {
    std::vector<std::string> arguments = {"train", "--resume", "runs/" + name};
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  // Tensors whose names begin with `prefix`, by the name without it; the latest checkpoint of a folder.
  std::map<std::string, std::vector<std::byte>> tensors(const std::string& folder,
                                                        const std::string& prefix = "") {
    CheckpointFolder checkpoints(system_files(), folder_.path(folder + "/checkpoints"), {});
    const auto latest = checkpoints.find_latest();
    std::map<std::string, std::vector<std::byte>> result;
    for (const SafetensorsEntry& entry : latest.checkpoint->tensors()) {
      if (!entry.name.starts_with(prefix)) continue;
      auto& bytes = result[entry.name.substr(prefix.size())];
      bytes.resize(static_cast<size_t>(entry.bytes()));
      latest.checkpoint->file().read(entry, bytes);
    }
    return result;
  }
  std::string state(const std::string& folder, const std::string& name) {
    CheckpointFolder checkpoints(system_files(), folder_.path(folder + "/checkpoints"), {});
    return checkpoints.find_latest().checkpoint->state().at(name);
  }
  static std::map<std::string, std::vector<std::byte>> weights_among(
      std::map<std::string, std::vector<std::byte>> tensors) {
    std::erase_if(tensors, [](const auto& item) {
      return item.first.starts_with("first_moment.") || item.first.starts_with("second_moment.") ||
             item.first.starts_with("average.");
    });
    return tensors;
  }
  bool exists(const std::string& path) { return system_files().exists(folder_.path(path)); }
  void remove_tree(const std::string& path) {
    const auto status = system_files().status(folder_.path(path));
    if (status && status->is_directory) {
      for (const std::string& name : system_files().list(folder_.path(path))) remove_tree(path + "/" + name);
      std::remove(folder_.path(path).c_str());
    } else if (status) {
      system_files().remove(folder_.path(path));
    }
  }

  TemporaryFolder folder_;
};

TEST_F(FineTuning, EveryKindOfSourceGivesTheSameWeights) {
  for (const char* family : {"gpt2", "llama"}) {
    const std::string name = family;
    expect_done(train(name, {"model.base=tiny-" + name}));
    expect_done({"export", "runs/" + name, "--output", name + "-out", "--max-shard-size", "40kB"});
    EXPECT_TRUE(exists(name + "-out/model.safetensors.index.json"));
    EXPECT_TRUE(exists(name + "-out/generation_config.json"));
    expect_done({"import", name + "-out", "--output", name + "-in"});
    const auto expected = weights_among(tensors("runs/" + name));
    EXPECT_TRUE(tensors(name + "-in") == expected);
    int number = 0;
    for (const std::string& source :
         {"runs/" + name, "runs/" + name + "/checkpoints/step_00000004.safetensors", name + "-out",
          name + "-in"}) {
      const std::string tuned = fmt::format("{}-tuned-{}", name, number++);
      // A rate of zero leaves the weights as they came.
      expect_done(train(tuned, {"train.init_from=" + source, "train.learning_rate=0", "train.steps=1"}));
      EXPECT_TRUE(weights_among(tensors("runs/" + tuned)) == expected) << source;
    }
  }
}

TEST_F(FineTuning, AllFormsOfAModelWriteTheSameText) {
  expect_done(train("base", {"model.base=tiny-llama"}));
  expect_done({"export", "runs/base", "--output", "out"});
  expect_done({"import", "out", "--output", "in"});
  const auto text = [&](const std::string& model) {
    const ProgramResult result =
        run({"generate", model, "--prompt", "In the", "--max-tokens", "20", "--seed", "5", "--threads", "1"});
    EXPECT_EQ(result.exit_code, 0) << model << result.errors;
    EXPECT_GT(result.output.size(), 10U);
    return result.output;
  };
  const std::string expected = text("runs/base");
  for (const char* model : {"out", "in", "in/checkpoints/step_00000000.safetensors"}) {
    EXPECT_EQ(text(model), expected) << model;
  }
}

TEST_F(FineTuning, ARunGoesOnFromItsOwnCheckpointsAfterwards) {
  expect_done(train("base", {"model.base=tiny-gpt2"}));
  expect_done(train("whole", {"train.init_from=runs/base", "train.seed=7"}));
  expect_done(train("parts", {"train.init_from=runs/base", "train.seed=7", "train.steps=2"}));
  remove_tree("runs/base");  // not needed any more
  expect_done(resume("parts", {"train.steps=4"}));
  EXPECT_TRUE(tensors("runs/parts") == tensors("runs/whole"));
  expect_refused(resume("parts", {"train.init_from=elsewhere"}), "train.init_from");
}

TEST_F(FineTuning, TheOptimizersStateComesAlongWhenAskedFor) {
  expect_done(train("base", {"model.base=tiny-gpt2"}));
  expect_done(train("fresh", {"train.init_from=runs/base"}));
  expect_done(train("given", {"train.init_from=runs/base", "train.init_optimizer=true"}));
  EXPECT_EQ(state("runs/fresh", "progress").find("earlier_updates"), std::string::npos);
  EXPECT_NE(state("runs/given", "progress").find("optimizer_step 4\n"), std::string::npos);
  EXPECT_NE(state("runs/given", "progress").find("earlier_updates 4\n"), std::string::npos);
  EXPECT_FALSE(tensors("runs/fresh") == tensors("runs/given"));
  // Interrupted or not is the same there too.
  expect_done(train("parts", {"train.init_from=runs/base", "train.init_optimizer=true", "train.steps=2"}));
  expect_done(resume("parts", {"train.steps=4"}));
  EXPECT_TRUE(tensors("runs/parts") == tensors("runs/given"));
  // And from a run that began so itself.
  expect_done(train("third", {"train.init_from=runs/given", "train.init_optimizer=true", "train.steps=1"}));
  EXPECT_NE(state("runs/third", "progress").find("earlier_updates 8\n"), std::string::npos);

  expect_done({"export", "runs/base", "--output", "out"});
  expect_refused(train("none", {"train.init_from=out", "train.init_optimizer=true"}),
                 "has no optimizer state");
  expect_refused(train("none", {"model.base=tiny-gpt2", "train.init_optimizer=true"}), "no train.init_from");
  expect_refused(
      train("none", {"train.init_from=runs/base", "train.init_optimizer=true", "optimizer.kind=sgd"}),
      "momentum.");
  EXPECT_FALSE(exists("runs/none"));
}

TEST_F(FineTuning, AnotherModelIsRefusedWithTheNumbers) {
  expect_done(train("base", {"model.base=tiny-gpt2"}));
  const auto with = [&](const std::string& setting) {
    return train("none", {"train.init_from=runs/base", setting});
  };
  expect_refused(with("model.vocabulary=300"), "model.vocabulary is 257 there and 300 here");
  expect_refused(with("model.width=64"), "model.width is 32 there and 64 here");
  expect_refused(with("model.heads=4"), "model.heads is 2 there and 4 here");
  expect_refused(with("model.positions=rotary"), "model.positions is \"learned\" there and \"rotary\" here");
  expect_refused(with("train.init_from=runs/nothing"), "there is no 'runs/nothing'");
  expect_refused(with("train.init_from=runs"), "holds no model");
  expect_refused(with("train.init_from=text.txt"), "text.txt");
  EXPECT_FALSE(exists("runs/none"));
  const ProgramResult windowed = run(with("model.window=8"));
  EXPECT_EQ(windowed.exit_code, 0);
  EXPECT_NE(windowed.output.find("model.window is 0 there and 8 here"), std::string::npos) << windowed.output;
}

TEST_F(FineTuning, AveragedWeightsAreExportedWhenAskedFor) {
  expect_done(train("base", {"model.base=tiny-llama", "optimizer.average_decay=0.9"}));
  expect_done({"export", "runs/base", "--output", "out", "--average"});
  expect_done({"import", "out", "--output", "in"});
  EXPECT_TRUE(tensors("in") == tensors("runs/base", "average."));
  expect_done(train("plain", {"model.base=tiny-llama"}));
  expect_refused({"export", "runs/plain", "--output", "none", "--average"}, "average.");
  EXPECT_FALSE(exists("none"));
}

TEST_F(FineTuning, TheTokenizerGoesWithTheWeights) {
  expect_done(train("base", {"model.base=tiny-gpt2"}));
  const auto bytes = open_tokenizer(system_files(), "bytes");
  expect_done({"export", "runs/base", "--output", "out"});
  const std::string config = read_file(system_files(), folder_.path("out/config.json"), 10000);
  EXPECT_NE(config.find("\"eos_token_id\": 256"), std::string::npos) << config;
  EXPECT_EQ(open_tokenizer(system_files(), folder_.path("out"))->identity(), bytes->identity());
  expect_done({"import", "out", "--output", "in"});
  EXPECT_EQ(open_tokenizer(system_files(), folder_.path("in/tokenizer.json"))->identity(), bytes->identity());
  EXPECT_EQ(state("in", "tokenizer"), read_file(system_files(), folder_.path("in/tokenizer.json"), 1 << 20));
  expect_done({"export", "in", "--output", "again"});
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_EQ(read_file(system_files(), folder_.path(std::string("again/") + name), 1 << 24),
              read_file(system_files(), folder_.path(std::string("out/") + name), 1 << 24))
        << name;
  }
  // A run takes it along; another one in its place is warned of.
  const ProgramResult tuned = run(train("tuned", {"train.init_from=in"}));
  EXPECT_EQ(tuned.exit_code, 0) << tuned.errors;
  EXPECT_NE(read_file(system_files(), folder_.path("runs/tuned/config.toml"), 100000)
                .find("tokenizer = \"in/tokenizer.json\""),
            std::string::npos);
  EXPECT_EQ(tuned.output.find("tokenizer is not that of the weights"), std::string::npos) << tuned.output;
  TokenizerDefinition other = bytes->definition();
  std::swap(other.tokens.at(0), other.tokens.at(1));
  Tokenizer(other).save(system_files(), folder_.path("other.json"));
  const ProgramResult warned = run(train("warned", {"train.init_from=in", "data.tokenizer=other.json"}));
  EXPECT_EQ(warned.exit_code, 0) << warned.errors;
  EXPECT_NE((warned.output + warned.errors).find("tokenizer is not that of the weights"), std::string::npos)
      << warned.output;
  // One that cannot be read is left behind, with its reason.
  write_file_atomically(system_files(), folder_.path("out/tokenizer.json"), "{}");
  const ProgramResult result = run({"import", "out", "--output", "without"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("the tokenizer is left out"), std::string::npos) << result.output;
  EXPECT_FALSE(exists("without/tokenizer.json"));
}

TEST_F(FineTuning, BadArgumentsAndHostileFoldersAreRefused) {
  const std::string fixture = ATHANOR_SOURCE_DIR "/tests/data/hugging_face/llama";
  expect_refused({"import", "nowhere", "--output", "in"}, "nowhere/config.json");
  expect_refused({"import", fixture}, "--output");
  expect_done({"import", fixture, "--output", "in"});
  expect_refused({"import", fixture, "--output", "in"}, "there is something already");
  expect_refused({"export", "in", "--output", "in"}, "there is something already");
  expect_refused({"train", "--resume", "in"}, "in holds no run that could go on");
  expect_refused({"import", fixture, "--output", ""}, "--output: the value is empty");
  expect_refused({"export", "in", "--output", "text.txt"}, "there is something already");
  expect_refused({"export", "in", "--output", "out", "--dtype", "int8"}, "--dtype int8");
  expect_refused({"export", "in", "--output", "out", "--dtype", "u8"}, "--dtype u8");
  for (const char* size : {"", "GB", "0", "-1GB", "5 bananas", "1e30GB", "nan"}) {
    expect_refused({"export", "in", "--output", "out", fmt::format("--max-shard-size={}", size)},
                   "--max-shard-size");
  }
  expect_done(train("parallel", {"model.base=tiny-gpt2", "model.parallel_block=true"}));
  expect_refused({"export", "runs/parallel", "--output", "out"}, "model.parallel_block");
  EXPECT_FALSE(exists("out"));

  system_files().make_directories(folder_.path("bad"));
  const auto bad = [&](const std::string& config) {
    write_file_atomically(system_files(), folder_.path("bad/config.json"), config);
  };
  bad("{");
  expect_refused({"import", "bad", "--output", "none"}, "not JSON");
  bad(R"({"model_type":"bert"})");
  expect_refused({"import", "bad", "--output", "none"}, "model_type is bert");
  bad(read_file(system_files(), fixture + "/config.json", 10000));
  expect_refused({"import", "bad", "--output", "none"}, "neither model.safetensors");
  expect_refused(train("none", {"train.init_from=bad"}), "a vocabulary of 61");
  write_file_atomically(system_files(), folder_.path("bad/model.safetensors"), std::string(100, '\xff'));
  expect_refused({"import", "bad", "--output", "none"}, "bad/model.safetensors");
  EXPECT_FALSE(exists("none"));
  EXPECT_FALSE(exists("runs/none"));
}

}  // namespace
}  // namespace athanor
