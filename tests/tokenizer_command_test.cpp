// `athanor tokenizer` as people and scripts use it.

#include <gtest/gtest.h>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

const std::string gpt2 = ATHANOR_SOURCE_DIR "/tests/data/gpt2";

class TokenizerCommand : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) {
    write_file_atomically(system_files(), folder_.path(name), text);
  }
  std::string read(const std::string& name) { return read_file(system_files(), folder_.path(name), 1 << 26); }
  ProgramResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ATHANOR_PROGRAM, "tokenizer"});
    return run_and_wait(arguments, folder_.path());
  }

  TemporaryFolder folder_;
};

TEST_F(TokenizerCommand, EncodesAndDecodes) {
  const ProgramResult encoded = run({"encode", gpt2, "--text", "hello world"});
  EXPECT_EQ(encoded.exit_code, 0);
  EXPECT_EQ(encoded.output, "31373 995\n");
  EXPECT_NE(encoded.errors.find("11 bytes, 2 tokens"), std::string::npos) << encoded.errors;
  const ProgramResult special = run({"encode", gpt2, "--text", "a<|endoftext|>b", "--special"});
  EXPECT_EQ(special.output, "64 50256 65\n");
  write("ids.txt", "31373,995\n 50256");
  EXPECT_EQ(run({"decode", gpt2, "--input", "ids.txt"}).output, "hello world");
  EXPECT_EQ(run({"decode", gpt2, "--input", "ids.txt", "--special"}).output, "hello world<|endoftext|>");
}

TEST_F(TokenizerCommand, FilesOfMegabytesComeBack) {
  // Long enough for several pieces; with bytes that are no text, and a word longer than a piece.
  std::string text;
  for (int line = 0; line < 30000; ++line)
    text += fmt::format("Line {} of it, caf\xc3\xa9 \xf0\x9f\x91\xa9 \xff.\n", line);
  text.append(3 << 20, 'x');
  text += " end";
  write("text", text);
  for (const std::string& tokenizer : {std::string("bytes"), gpt2}) {
    EXPECT_EQ(run({"encode", tokenizer, "-i", "text", "-o", "ids"}).exit_code, 0);
    EXPECT_EQ(run({"decode", tokenizer, "-i", "ids", "-o", "back"}).exit_code, 0);
    EXPECT_TRUE(read("back") == text) << tokenizer;
  }
}

TEST_F(TokenizerCommand, ShowsWhatATokenizerIs) {
  const ProgramResult shown = run({"show", gpt2, "--text", "caf\xc3\xa9 \xf0\x9f\x91\xa9"});
  EXPECT_EQ(shown.exit_code, 0);
  for (const char* part : {"50,257", "50,000", "GPT-2", "50256 <|endoftext|>", "66  c", "bytes per token"}) {
    EXPECT_NE(shown.output.find(part), std::string::npos) << part << " in " << shown.output;
  }
}

TEST_F(TokenizerCommand, RefusesWithAMessage) {
  write("bad.json", R"({"model": {"type": "WordPiece"}})");
  write("letters", "12 three");
  for (const auto& [arguments, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"encode", "absent.json", "--text", "x"}, "absent.json"},
           {{"encode", "bad.json", "--text", "x"}, "bad.json"},
           {{"encode", "bytes", "--input", "absent"}, "absent"},
           {{"decode", "bytes", "--input", "letters"}, "'t'"},
           {{"decode", "bytes", "--text", "1"}, "--text"},
           {{"encode", "bytes", "--text", "1", "--input", "letters"}, "--text and --input are both given"},
           {{"encoed", "bytes"}, "encoed"},
           {{"encode"}, "TOKENIZER"},
           {{}, "ubcommand"},
       }) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(result.output, "") << message;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
  }
  write("large", "99999999999999999999");
  EXPECT_EQ(run({"decode", "bytes", "--input", "large", "--output", "kept"}).exit_code, 2);
  EXPECT_FALSE(system_files().exists(folder_.path("kept")));
}

TEST(TokenizerMessages, ThatCannotBeWrittenEndNothing) {
  const TemporaryFolder folder;
  const ProgramResult result = run_and_wait(
      {"/bin/bash", "-c", "exec \"$0\" tokenizer encode bytes --text ab 2>/dev/full", ATHANOR_PROGRAM},
      folder.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "97 98\n");
}

}  // namespace
}  // namespace athanor
