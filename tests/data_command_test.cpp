// `athanor data` as people and scripts use it, and runs on what it makes.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

const std::string gpt2 = ATHANOR_SOURCE_DIR "/tests/data/gpt2";

class DataCommand : public testing::Test {
 protected:
  DataCommand() {
    std::string text, lines;
    for (int i = 0; i < 400; ++i) {
      text += fmt::format("In the beginning line {} was the word.\n{}", i, i % 20 == 19 ? "%\n" : "");
      lines += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Is {} odd?\"}}, "
          "{{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
          i, i % 2 == 1 ? "Yes." : "No.");
    }
    system_files().make_directories(folder_.path("texts"));
    write("texts/a.txt", text);
    write("texts/b.jsonl", lines);
  }
  void write(const std::string& name, std::string_view text) {
    write_file_atomically(system_files(), folder_.path(name), text);
  }
  std::string read(const std::string& name) { return read_file(system_files(), folder_.path(name), 1 << 28); }
  bool exists(const std::string& name) { return system_files().exists(folder_.path(name)); }
  ProgramResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ATHANOR_PROGRAM);
    return run_and_wait(arguments, folder_.path());
  }
  ProgramResult expect_done(const std::vector<std::string>& arguments) {
    ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result;
  }
  void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
    EXPECT_NE(result.errors.find("\n  hint: "), std::string::npos) << result.errors;
  }
  std::vector<std::string> tiny(const std::vector<std::string>& settings) const {
    std::vector<std::string> arguments = {"train", "--config", ATHANOR_SOURCE_DIR "/configs/runs/tiny.toml"};
    for (const char* setting : {"run.name=r", "train.steps=4", "run.measure_peak=false", "sample.length=0",
                                "train.schedule=constant", "validation.every=0", "data.validation_fraction=0",
                                "data.sequence_length=32"}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }

  TemporaryFolder folder_;
};

TEST_F(DataCommand, BuildsInspectsAndTrains) {
  const ProgramResult built = expect_done({"data", "build", "texts", "-o", "out/d", "--separator", "%",
                                           "--tokenizer", gpt2, "--validation-fraction", "0.2"});
  EXPECT_NE(built.output.find("out/d.train.tokens: "), std::string::npos) << built.output;
  EXPECT_NE(built.output.find("420 documents"), std::string::npos) << built.output;
  EXPECT_TRUE(exists("out/d.tokenizer.json"));
  EXPECT_FALSE(exists("out/d.building"));
  const ProgramResult seen =
      expect_done({"data", "inspect", "out/d.train.tokens", "--tokenizer", "out/d.tokenizer.json"});
  for (const char* part : {"version 2", "not learned", "damaged     no", "In the beginning line"})
    EXPECT_NE(seen.output.find(part), std::string::npos) << seen.output;

  expect_refused({"data", "build", "texts", "-o", "out/d", "--validation-fraction", "0.2"}, "exists already");
  expect_refused(tiny({"data.train=out/d.train.tokens"}), "set model.vocabulary to 50257 or more");
  const ProgramResult trained =
      expect_done(tiny({"data.train=out/d.train.tokens", "data.validation.held=out/d.validation.tokens",
                        "model.vocabulary=50257", "data.packing=documents", "sample.length=4"}));
  EXPECT_NE(trained.output.find("the model writes"), std::string::npos) << trained.output;
  EXPECT_TRUE(exists("runs/r/tokenizer.json"));
  const ProgramResult generated =
      expect_done({"generate", "runs/r", "--prompt", "In the beginning", "--max-tokens", "3"});
  EXPECT_EQ(generated.output.substr(0, 16), "In the beginning");
}

TEST_F(DataCommand, TheSameFilesForEveryNumberOfThreads) {
  for (const char* threads : {"1", "3"}) {
    expect_done({"data", "build", "texts", "-o", std::string("t") + threads, "--tokenizer", gpt2, "--threads",
                 threads});
  }
  EXPECT_TRUE(read("t1.tokens") == read("t3.tokens"));
}

TEST_F(DataCommand, MegatronFilesGoInAndOut) {
  expect_done({"data", "build", "texts/a.txt", "-o", "m", "--format", "megatron", "--tokenizer", gpt2});
  const ProgramResult seen = expect_done({"data", "inspect", "m"});
  EXPECT_NE(seen.output.find("Megatron indexed dataset, 1 sequence of 2-byte tokens"), std::string::npos)
      << seen.output;
  expect_done(tiny({"data.train=m.idx", "model.vocabulary=50257"}));
  EXPECT_EQ(read("runs/r/tokenizer.json"), read("m.tokenizer.json"));  // of a format that names none
  expect_done({"evaluate", "runs/r", "--data", "m", "--tokens", "100"});
  expect_done({"data", "build", "texts/a.txt", "-o", "bytes"});
  expect_refused({"evaluate", "runs/r", "--data", "bytes.tokens"}, "made with another tokenizer");
  expect_refused({"data", "build", "texts", "-o", "n", "--format", "megatron"}, "not learned");
}

TEST_F(DataCommand, AChangedBlend_P65_IsRefusedWithoutTheFlag) {
  expect_done(tiny({"data.blend.a=1:texts/a.txt", "data.blend.b=1:texts/b.jsonl"}));
  const std::vector<std::string> changed = {
      "train", "--resume", "runs/r", "--set", "train.steps=6", "--set", "data.blend.b=3:texts/b.jsonl"};
  expect_refused(changed, "data.blend");
  std::vector<std::string> meant = changed;
  meant.emplace_back("--change-data");
  const ProgramResult went_on = expect_done(meant);
  EXPECT_NE(went_on.output.find("weight 3"), std::string::npos) << went_on.output;
  // The flag is no option of the run: the next change is refused again.
  expect_refused(
      {"train", "--resume", "runs/r", "--set", "train.steps=8", "--set", "data.blend.b=4:texts/b.jsonl"},
      "data.blend");
  expect_refused({"train", "--change-data"}, "--change-data");
}

TEST_F(DataCommand, BadInputIsRefused) {
  expect_refused({"data", "build", "none.txt", "-o", "x"}, "none.txt");
  expect_refused({"data", "build", "texts", "-o", "x", "--format", "megatro"}, "megatro");
  expect_refused({"data", "build", "texts", "-o", "x", "--chat-template", "chatml"},
                 "no special token <|im_start|>");
  expect_refused({"data", "build", "texts", "-o", "x", "--validation-fraction", "1.5"}, "1.5 for validation");
  expect_refused({"data", "build", "texts", "-o", "x", "--validation-fraction", "nan"}, "nan for validation");
  expect_refused({"data", "build", "texts", "-o", "folder/"}, "no beginning of a file name");
  expect_refused({"data", "build", "texts", "-o", "x", "--threads", "-1"}, "--threads -1");
  write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
  expect_refused({"data", "build", "bad.jsonl", "-o", "x"}, "bad.jsonl:2: ");
  const ProgramResult skipped = expect_done({"data", "build", "bad.jsonl", "-o", "y", "--skip-bad"});
  EXPECT_NE(skipped.output.find("left out 1 line that"), std::string::npos) << skipped.output;
  EXPECT_NE(skipped.output.find("bad.jsonl:2: "), std::string::npos) << skipped.output;

  expect_refused(tiny({"data.blend.first=1:texts/a.txt", "data.blend.second=0,5:texts/a.txt"}),
                 "data.blend.second: '0,5' is no weight");
  write("user.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"" + std::string(500, 'x') + "\"}]}\n");
  expect_refused(tiny({"data.train=user.jsonl"}), "no token of the data set train is marked as learned");
  expect_refused(tiny({"data.blend.a=1:texts/a.txt", "data.blend.b=1:user.jsonl"}), "the data set b");

  // What a file says reaches no terminal as a command to it.
  write("bad.jsonl", "{\"messages\": [{\"role\": \"\\u001b[31m\", \"content\": \"\"}]}\n");
  expect_refused({"data", "build", "bad.jsonl", "-o", "x"}, "the role is \"\xef\xbf\xbd[31m\"");
  EXPECT_FALSE(exists("x.building"));
  expect_refused({"data", "build", "texts", "-o", "texts/.."}, "no beginning of a file name");

  // Hostile files of every kind.
  write("h.bin", std::string(16, '\1'));
  for (const std::string& index : {std::string(), std::string("MMIDIDX\0\0", 9),
                                   std::string("MMIDIDX\0\0", 9) + std::string(25, '\xff')}) {
    write("h.idx", index);
    expect_refused({"data", "inspect", "h"}, "h.idx");
    expect_refused(tiny({"data.train=h.idx"}), "h.idx");
  }
  write("h.tokens", "ATHTOK\r\n" + std::string(300, '\xff'));
  expect_refused({"data", "inspect", "h.tokens"}, "h.tokens");
  write("l.bin", std::string("\x88\xd8\x34\x01", 4) + std::string(2000, '\xff'));
  expect_refused({"data", "inspect", "l.bin"}, "l.bin");
  expect_refused({"data", "inspect", "texts/a.txt"}, "is a text, no file of tokens");
  expect_refused({"data", "inspect", "h.tokens", "--documents", "-5"}, "--documents");

  // A damaged file is shown as far as it goes, and told by the exit code.
  expect_done({"data", "build", "texts/a.txt", "-o", "z"});
  std::string damaged = read("z.tokens");
  damaged[1000] ^= 1;
  write("z.tokens", damaged);
  const ProgramResult result = run({"data", "inspect", "z.tokens"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.output.find("checksum of block 0"), std::string::npos) << result.output;
}

// Address space for some of them. What is left may not do for the rest of the work, which is then refused.
TEST_F(DataCommand, ThreadsThatTheSystemDoesNotGrantEndNoProcess) {
  const ProgramResult result = run_and_wait(
      {"/bin/bash", "-c", "ulimit -v 4000000; exec \"$0\" data build texts/a.txt -o out --threads 4096",
       ATHANOR_PROGRAM},
      folder_.path());
  EXPECT_EQ(result.signal, 0) << result.errors;
  EXPECT_TRUE(result.exit_code == 0 || result.errors.starts_with("athanor: ")) << result.errors;
}

}  // namespace
}  // namespace athanor
