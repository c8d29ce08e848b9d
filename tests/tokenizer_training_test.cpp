// athanor tokenizer train, from files to a tokenizer that the other commands take.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

class TokenizerTrainingTest : public testing::Test {
 protected:
  TokenizerTrainingTest() {
    system_files().make_directories(folder_.path("texts/more"));
    std::string text, lines;
    for (int line = 0; line < 2000; ++line) {
      text += fmt::format("Verse {}: and the {} waters were gathered together, as {} times before.\n", line,
                          line * line % 1009, line % 7);
      lines += fmt::format("{{\"text\": \"Record {} says so.\\n\"}}\n", line * 31 % 997);
    }
    write("texts/a.txt", text);
    write("texts/more/b.jsonl", lines);
    write("b.jsonl", lines);
    write("a.txt", text);
  }

  void write(const std::string& name, std::string_view text) {
    write_file_atomically(system_files(), folder_.path(name), text);
  }
  std::string read(const std::string& name) { return read_file(system_files(), folder_.path(name), 1 << 24); }
  ProgramResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ATHANOR_PROGRAM);
    return run_and_wait(arguments, folder_.path());
  }
  void expect_refused(std::vector<std::string> arguments, const std::string& message) {
    arguments.insert(arguments.begin(), {"tokenizer", "train"});
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
    EXPECT_NE(result.errors.find("\n  hint: "), std::string::npos) << result.errors;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenizerTrainingTest, ResultDependsOnTheDocumentsAlone) {
  const ProgramResult result = run({"tokenizer", "train", "texts", "--vocabulary", "600", "-o", "1.json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("1.json: 600 tokens from 0.2 MB of text"), std::string::npos) << result.output;
  EXPECT_EQ(run({"tokenizer", "train", "b.jsonl", "a.txt", "--vocabulary", "600", "-o", "2.json", "--threads",
                 "3", "--memory", "32M"})
                .exit_code,
            0);
  EXPECT_EQ(read("2.json"), read("1.json"));
  // Other documents: the file as one line after another.
  EXPECT_EQ(run({"tokenizer", "train", "texts/a.txt", "--vocabulary", "600", "-o", "3.json"}).exit_code, 0);
  EXPECT_NE(read("3.json"), read("1.json"));
  for (const std::string& name : system_files().list(folder_.path())) {
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name << " was left behind";
  }
}

TEST_F(TokenizerTrainingTest, OtherCommandsTakeTheResult) {
  ASSERT_EQ(run({"tokenizer", "train", "a.txt", "--vocabulary", "500", "-o", "t.json", "--pattern", "llama3",
                 "--special", "<|end|>", "--special", "<|pad|>"})
                .exit_code,
            0);
  EXPECT_EQ(run({"tokenizer", "encode", "t.json", "-i", "a.txt", "-o", "ids.txt"}).exit_code, 0);
  EXPECT_EQ(run({"tokenizer", "decode", "t.json", "-i", "ids.txt", "-o", "again.txt"}).exit_code, 0);
  EXPECT_EQ(read("again.txt"), read("a.txt"));
  EXPECT_LT(read("ids.txt").size(), read("a.txt").size() * 5 / 4);
  const ProgramResult shown = run({"tokenizer", "show", "t.json"});
  EXPECT_NE(shown.output.find("words as Llama 3"), std::string::npos) << shown.output;
  EXPECT_NE(shown.output.find("498 <|end|>"), std::string::npos) << shown.output;
}

TEST_F(TokenizerTrainingTest, RefusesWithAReason) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"a.txt", "--vocabulary", "300", "-o", "x.json"});
    return more;
  };
  expect_refused({"nowhere.txt", "--vocabulary", "300", "-o", "x.json"}, "nowhere.txt");
  expect_refused({"a.txt", "--vocabulary", "256", "-o", "x.json"}, "a vocabulary of 256 tokens");
  expect_refused({"a.txt", "--vocabulary", "300", "-o", "nowhere/x.json"}, "there is no folder nowhere");
  expect_refused(with({"--pattern", "gpt9"}), "--pattern gpt9");
  expect_refused(with({"--memory", "1M"}), "--memory 1M");
  expect_refused(with({"--memory", "much"}), "--memory");
  expect_refused(with({"--threads", "-1"}), "--threads -1");
  expect_refused(with({"--special", "<a>", "--special", "<a>"}), "'<a>' is given twice");
  write("empty.txt", "");
  expect_refused({"empty.txt", "--vocabulary", "300", "-o", "x.json"}, "no text to learn from");
  expect_refused({"a.txt", "--vocabulary", "300", "-o", "./a.txt"}, "'./a.txt' is both a text to read");
  expect_refused({"a.txt", "--vocabulary", "300", "-o", "."}, "'.' is no name of a file");
  write("bad.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n");
  expect_refused({"bad.jsonl", "--vocabulary", "300", "-o", "x.json"}, "bad.jsonl:2: ");
  EXPECT_FALSE(system_files().exists(folder_.path("x.json")));
  // Before it reads: standard input would keep it waiting.
  expect_refused({"-", "--vocabulary", "300", "-o", "/proc/x.json"}, "cannot create '/proc/x.json.");
}

TEST_F(TokenizerTrainingTest, SaysWhenTheTextGivesFewerTokens) {
  write("small.txt", "aa aa");
  const ProgramResult result =
      run({"tokenizer", "train", "small.txt", "--vocabulary", "1000", "-o", "x.json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.errors.find("gives 259 tokens only, not the 1,000"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace athanor
