// The program as people and scripts use it: commands, exit codes, messages for bad input, resuming.

#include <gtest/gtest.h>

#include <chrono>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string text;
    for (int line = 0; line < 300; ++line) {
      text +=
          fmt::format("In the beginning line {} was the word, and {} came after it.\n", line, line * line);
    }
    write("text.txt", text);
  }

  void write(const std::string& name, std::string_view text) {
    write_file_atomically(system_files(), folder_.path(name), text);
  }
  std::string read(const std::string& name) { return read_file(system_files(), folder_.path(name), 1 << 24); }

  ProgramResult run(std::vector<std::string> arguments, const std::string& output_to = {}) {
    arguments.insert(arguments.begin(), ATHANOR_PROGRAM);
    return run_and_wait(arguments, folder_.path(), output_to);
  }
  // A run of seconds over text.txt.
  std::vector<std::string> tiny(const std::string& name,
                                const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> arguments = {"train", "--config", ATHANOR_SOURCE_DIR "/configs/runs/tiny.toml"};
    for (const std::string& setting :
         {std::string("data.train=text.txt"), "run.name=" + name, std::string("train.steps=6"),
          std::string("run.measure_peak=false"), std::string("train.schedule=constant"),
          std::string("sample.length=0"), std::string("validation.every=0")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  // Exit code 2, and both parts in a message of this form: nothing else on either stream.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& message,
                      const std::string& hint) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(result.errors.substr(0, 9), "athanor: ");
    const size_t at = result.errors.find("\n  hint: ");
    EXPECT_NE(at, std::string::npos) << result.errors;
    EXPECT_NE(result.errors.substr(0, at).find(message), std::string::npos) << result.errors;
    EXPECT_NE(result.errors.substr(std::min(at, result.errors.size())).find(hint), std::string::npos)
        << result.errors;
  }
  // The part of metrics.jsonl that does not depend on time: the losses.
  std::vector<std::string> losses(const std::string& name) {
    std::vector<std::string> found;
    const std::string text = read("runs/" + name + "/metrics.jsonl");
    for (size_t at = text.find("\"loss\":"); at != std::string::npos; at = text.find("\"loss\":", at + 1)) {
      found.push_back(text.substr(at, text.find(',', at) - at));
    }
    return found;
  }

  TemporaryFolder folder_;
};

TEST_F(ProgramTest, EveryCommandHasHelp) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{},
                                                  {"train"},
                                                  {"show"},
                                                  {"generate"},
                                                  {"evaluate"},
                                                  {"help"},
                                                  {"help", "options"},
                                                  {"version"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.errors, "");
    EXPECT_NE(result.output.find("Usage: athanor"), std::string::npos) << result.output;
  }
  EXPECT_NE(run({}).output.find("train"), std::string::npos);
  EXPECT_NE(run({"--help"}).output.find("Exit codes"), std::string::npos);
  EXPECT_EQ(run({"version"}).output.substr(0, 8), "athanor ");
}

TEST_F(ProgramTest, OptionsAreListedByGroup) {
  const ProgramResult train = run({"help", "options", "train"});
  EXPECT_EQ(train.exit_code, 0);
  EXPECT_NE(train.output.find("train.learning_rate = "), std::string::npos);
  EXPECT_EQ(train.output.find("model.width"), std::string::npos);
  EXPECT_NE(run({"help", "options"}).output.find("model.width = "), std::string::npos);
  EXPECT_NE(run({"help", "options", "--markdown"}).output.find("| `model.width` |"), std::string::npos);
  expect_refused({"help", "options", "trian"}, "no group of options trian", "train");
}

TEST_F(ProgramTest, WrongWordsGetTheNearestRightOne) {
  expect_refused({"trian"}, "athanor trian: there is no such command", "did you mean athanor train?");
  expect_refused({"xyzzy"}, "athanor xyzzy", "there are train, show");
  expect_refused({"help", "optoins"}, "help optoins", "athanor help options");
  expect_refused({"train", "--confg", "x.toml"}, "train: --confg was not expected", "did you mean --config?");
  expect_refused({"train", "word"}, "word was not expected", "athanor train --help");
  expect_refused({"show"}, "WHAT is required", "athanor show --help");
  expect_refused({"show", "blok"}, "show blok", "did you mean block?");
  expect_refused({"show", "step", "--program", "tain"}, "--program tain", "did you mean train?");
  expect_refused({"show", "block", "--template", "x"}, "begins with x", "block.forward");
  expect_refused({"train", "--set"}, "--set", "athanor train --help");
  expect_refused({"generate", "--seed", "x"}, "--seed", "athanor generate --help");
  expect_refused({std::string("\xff\xfe")}, "there is no such command", "train");
  expect_refused({std::string(100'000, 'x')}, "there is no such command", "train");
}

TEST_F(ProgramTest, EmptyValuesAreNotTakenForZero) {
  write("text.txt", "some text");
  expect_refused({"data", "build", "text.txt", "-o", "x", "--threads", ""}, "--threads: the value is empty",
                 "--help");
  expect_refused({"data", "build", "text.txt", "-o", "x", "--validation-fraction", ""},
                 "--validation-fraction: the value is empty", "--help");
  expect_refused({"tokenizer", "train", "text.txt", "-o", "x", "--vocabulary", ""},
                 "--vocabulary: the value is empty", "--help");
  expect_refused({"generate", "--seed", ""}, "--seed: the value is empty", "--help");
  expect_refused({"generate", "", "--prompt", ""}, "MODEL: the value is empty", "--help");
  expect_refused({"train", "--config", ""}, "--config: the value is empty", "--help");
  expect_refused({"train", "--resume", ""}, "--resume: the value is empty", "--resume alone");
  expect_refused({"train", "--resume=", "--set", "train.steps=9"}, "--resume: the value is empty", "");
  expect_refused({"tokenizer", "encode", "bytes", "--text", "a", "-o", ""}, "--output: the value is empty",
                 "--help");
  const ProgramResult empty_text = run({"tokenizer", "encode", "bytes", "--text", ""});
  EXPECT_EQ(empty_text.exit_code, 0) << empty_text.errors;
}

TEST_F(ProgramTest, HelpOnACommandIsThatOfTheCommand) {
  EXPECT_EQ(run({"help", "train"}).output, run({"train", "--help"}).output);
  EXPECT_EQ(run({"help", "data", "build"}).output, run({"data", "build", "--help"}).output);
  EXPECT_EQ(run({"help", "tokenizer"}).output, run({"tokenizer", "--help"}).output);
  EXPECT_EQ(run({"help"}).output, run({"--help"}).output);
  expect_refused({"help", "data", "biuld"}, "athanor data biuld: there is no such command",
                 "did you mean athanor data build?");
  EXPECT_EQ(run({"--version"}).output, run({"version"}).output);
}

TEST_F(ProgramTest, WrongOptionsAreRefusedByName) {
  expect_refused({"train", "--set", "train.stps=3"}, "there is no option train.stps",
                 "did you mean train.steps?");
  expect_refused({"train", "--set", "train.steps=many"}, "train.steps wants a whole number", "train.steps");
  expect_refused({"train", "--set", "train.steps=0"}, "train.steps = 0 is out of range", "Optimizer steps");
  expect_refused({"train", "--set", "train.steps"}, "wants NAME=VALUE", "train.steps");
  expect_refused({"train", "--set", "model.base=gpt5"}, "there is no gpt5.toml", "gpt2-124m");
  expect_refused({"train", "--config", "none.toml"}, "none.toml", "does not exist");
  expect_refused({"train", "--set", "model.heads=7", "--set", "data.train=text.txt"}, "model.heads 7",
                 "model.head_dim");
  expect_refused({"show", "step", "--set", "data.sequence_length=4096"}, "model.maximum_positions",
                 "data.sequence_length");
  write("wrong.toml", "[train]\nsteps = 10\nlearning_rat = 0.1\n");
  expect_refused({"train", "--config", "wrong.toml"}, "wrong.toml:3", "train.learning_rate");
  // A configuration finds the models beside it, wherever the program is called.
  const TemporaryFolder other;
  system_files().make_directories(other.path("configs/models"));
  system_files().make_directories(other.path("configs/runs"));
  write_file_atomically(system_files(), other.path("configs/models/mine.toml"), "[model]\nlayers = 77\n");
  write_file_atomically(system_files(), other.path("configs/runs/a.toml"), "[model]\nbase = \"mine\"\n");
  const ProgramResult found = run({"show", "options", "--config", other.path("configs/runs/a.toml")});
  EXPECT_NE(found.output.find("layers = 77"), std::string::npos) << found.errors;
  write("broken.toml", "[train\n");
  expect_refused({"train", "--config", "broken.toml"}, "broken.toml:1", "TOML");
}

TEST_F(ProgramTest, BadDataFilesAreRefused) {
  expect_refused({"train"}, "data.train is not set", "--set data.train=FILE");
  expect_refused(tiny("a", {"data.train=none.txt"}), "none.txt", "does not exist");
  system_files().make_directories(folder_.path("none"));
  expect_refused(tiny("a", {"data.train=none"}), "'none' holds no data", "texts end in");
  write("empty.txt", "");
  expect_refused(tiny("a", {"data.train=empty.txt"}), "empty.txt", "text");
  write("empty.tokens", "");
  expect_refused(tiny("a", {"data.train=empty.tokens"}), "empty.tokens", "");
  write("short.txt", "too short");
  expect_refused(tiny("a", {"data.train=short.txt"}), "9 tokens", "sequence length");
  EXPECT_FALSE(system_files().exists(folder_.path("runs")));  // nothing was begun
}

TEST_F(ProgramTest, ATruncatedTokenFileIsRefused) {
  ASSERT_EQ(run(tiny("a", {"train.steps=1"})).exit_code, 0);
  const auto cached = system_files().list(folder_.path("data/cache"));
  ASSERT_EQ(cached.size(), 1u);
  const std::string tokens = read("data/cache/" + cached[0]);
  write("whole.tokens", tokens);
  EXPECT_EQ(run(tiny("b", {"data.train=whole.tokens", "train.steps=1"})).exit_code, 0);
  for (const size_t bytes : {tokens.size() - 1, tokens.size() / 2, size_t{10}}) {
    write("cut.tokens", tokens.substr(0, bytes));
    expect_refused(tiny("c", {"data.train=cut.tokens"}), "cut.tokens", "");
  }
}

TEST_F(ProgramTest, AModelBeyondMemoryIsRefusedBeforeItIsAllocated) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> arguments = {"train",
                                              "--set",
                                              "data.train=text.txt",
                                              "--set",
                                              "model.base=mt-530b",
                                              "--set",
                                              "data.sequence_length=2048",
                                              "--set",
                                              "train.micro_batch=1"};
  const ProgramResult result = run(arguments);
  EXPECT_EQ(result.exit_code, 2);
  // 18 bytes a parameter at least: 8.8 TiB.
  EXPECT_NE(result.errors.find("the run needs 8"), std::string::npos) << result.errors;
  EXPECT_NE(result.errors.find("GiB are available"), std::string::npos) << result.errors;
  EXPECT_NE(result.errors.find("hint: lower train.micro_batch"), std::string::npos) << result.errors;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_FALSE(system_files().exists(folder_.path("runs")));
}

TEST_F(ProgramTest, ShowsModelsOfAnySizeWithoutRunningThem) {
  for (const char* topic : {"block", "step", "memory", "parameters", "options"}) {
    const ProgramResult result =
        run({"show", topic, "--set", "model.base=gpt3-175b", "--set", "run.kernels=reference", "--set",
             "train.micro_batch=1", "--set", "data.sequence_length=2048"});
    EXPECT_EQ(result.exit_code, 0) << topic << ": " << result.errors;
    EXPECT_GT(result.output.size(), 100u) << topic;
  }
  for (const char* program : {"train", "validate", "prefill", "decode"}) {
    const ProgramResult result = run({"show", "step", "--program", program, "--set", "model.base=tiny-llama",
                                      "--set", "data.sequence_length=64"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find(fmt::format("program {}: ", program)), std::string::npos) << result.output;
  }
}

TEST_F(ProgramTest, AnOutputThatCannotBeWrittenIsNoSuccess) {
  const ProgramResult result = run({"help", "options"}, "/dev/full");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("standard output"), std::string::npos);
  const ProgramResult closed =
      run_and_wait({"/bin/sh", "-c", "'" ATHANOR_PROGRAM "' help options >&-"}, folder_.path());
  EXPECT_EQ(closed.exit_code, 2);
  EXPECT_NE(closed.errors.find("standard output"), std::string::npos) << closed.errors;
}

TEST_F(ProgramTest, ALossThatIsNotFiniteStopsTheJob) {
  const ProgramResult result =
      run(tiny("wild", {"optimizer.kind=sgd", "optimizer.maximum_norm=0", "train.steps=50",
                        "train.learning_rate=1000", "train.warmup_samples=0"}));
  EXPECT_EQ(result.exit_code, 3) << result.errors;
  EXPECT_NE(result.errors.find("the first tensor with it is"), std::string::npos) << result.errors;
  EXPECT_NE(result.errors.find("\n  hint: "), std::string::npos) << result.errors;
}

TEST_F(ProgramTest, AResumedRunGoesOnAsIfUninterrupted) {
  ASSERT_EQ(run(tiny("whole", {"train.steps=8"})).exit_code, 0);
  ASSERT_EQ(run(tiny("parts", {"train.steps=3"})).exit_code, 0);
  const ProgramResult resumed = run({"train", "--resume", "runs/parts", "--set", "train.steps=8"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_NE(resumed.output.find("train.steps: 8 instead of 3"), std::string::npos) << resumed.output;
  EXPECT_EQ(losses("parts").size(), 8u);
  EXPECT_EQ(losses("parts"), losses("whole"));
  // Without a folder: the latest run.
  EXPECT_NE(run({"train", "--resume", "--set", "train.steps=9"}).output.find("runs/parts"),
            std::string::npos);
  EXPECT_EQ(losses("parts").size(), 9u);
}

TEST_F(ProgramTest, AResumedRunRefusesOtherOptionsByName) {
  ASSERT_EQ(run(tiny("demo", {"train.schedule=cosine"})).exit_code, 0);
  const std::string configuration = read("runs/demo/config.toml");
  const auto resume = [](const char* setting) {
    return std::vector<std::string>{"train", "--resume", "runs/demo", "--set", setting};
  };
  expect_refused(resume("model.layers=3"), "model.layers: 2 in the saved run, 3 now", "new run");
  expect_refused(resume("train.seed=5"), "train.seed: 1 in the saved run, 5 now", "new run");
  expect_refused(resume("train.batch=16"), "train.batch", "new run");
  // The rates of a cosine depend on the number of steps.
  expect_refused(resume("train.steps=12"), "train.steps: 6 in the saved run, 12 now", "new run");
  expect_refused(resume("model.base=tiny-llama"), "model.base", "new run");
  expect_refused(tiny("demo", {"train.schedule=cosine", "run.existing=resume", "optimizer.beta2=0.9"}),
                 "optimizer.beta2", "new run");
  EXPECT_EQ(read("runs/demo/config.toml"), configuration);  // a refusal changes nothing
  EXPECT_EQ(run(resume("train.threads=2")).exit_code, 0);
  // How a stated batch is cut may change, the batch may not.
  expect_refused(resume("train.micro_batch=4"), "train.micro_batch: 8 in the saved run, 4 now", "new run");
  ASSERT_EQ(run(tiny("cut", {"train.batch=8", "train.micro_batch=4"})).exit_code, 0);
  const ProgramResult recut =
      run({"train", "--resume", "runs/cut", "--set", "train.micro_batch=2", "--set", "train.steps=7"});
  EXPECT_EQ(recut.exit_code, 0) << recut.errors;
  EXPECT_NE(recut.output.find("train.micro_batch: 2 instead of 4"), std::string::npos) << recut.output;
  expect_refused({"train", "--resume", "runs/none"}, "runs/none holds no run", "runs/demo");
  expect_refused(tiny("demo", {"run.existing=refuse"}), "already holds a run", "run.name");
  ASSERT_EQ(run(tiny("demo")).exit_code, 0);
  EXPECT_TRUE(system_files().exists(folder_.path("runs/demo-2/config.toml")));
}

TEST_F(ProgramTest, ADamagedCheckpointIsRefused) {
  ASSERT_EQ(run(tiny("demo")).exit_code, 0);
  const std::string path = "runs/demo/checkpoints/step_00000006.safetensors";
  std::string bytes = read(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write(path, bytes);
  expect_refused({"train", "--resume", "runs/demo"}, "step_00000006", "");
  expect_refused({"generate", "runs/demo"}, "step_00000006", "");
  write(path, bytes.substr(0, bytes.size() / 3));
  expect_refused({"train", "--resume", "runs/demo"}, "step_00000006", "");
}

TEST_F(ProgramTest, ATimeLimitSavesAndEndsWell) {
  const ProgramResult result = run(tiny("long", {"train.steps=1G", "run.wall_time_seconds=0.3"}));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("--resume runs/long"), std::string::npos) << result.output;
  EXPECT_FALSE(system_files().list(folder_.path("runs/long/checkpoints")).empty());
}

}  // namespace
}  // namespace athanor
