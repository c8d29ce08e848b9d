// `athanor generate` and `athanor evaluate` as people and scripts use them, on a run of a few steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "support/program.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

class GenerationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new TemporaryFolder();
    std::string text;
    for (int line = 0; line < 400; ++line)
      text += fmt::format("In the beginning line {} was the word, and {} came after.\n", line, line * line);
    write("text.txt", text);
    write("held_out.txt", text.substr(1000, 3000));
    std::vector<std::string> train{"train", "--config", ATHANOR_SOURCE_DIR "/configs/runs/tiny.toml"};
    for (const char* setting :
         {"data.train=text.txt", "run.name=demo", "train.steps=200", "run.measure_peak=false",
          "train.schedule=constant", "sample.length=0", "validation.every=0", "data.validation_fraction=0.2",
          "data.validation.held=held_out.txt", "optimizer.average_decay=0.9"}) {
      train.insert(train.end(), {"--set", setting});
    }
    const ProgramResult trained = run(train);
    ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  }
  static void TearDownTestSuite() { delete folder; }

  static void write(const std::string& name, std::string_view text) {
    write_file_atomically(system_files(), folder->path(name), text);
  }
  static ProgramResult run(std::vector<std::string> arguments, const std::string& output_to = {}) {
    arguments.insert(arguments.begin(), ATHANOR_PROGRAM);
    return run_and_wait(arguments, folder->path(), output_to);
  }
  static ProgramResult generate(std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "runs/demo", "--max-tokens", "40"});
    if (std::find(more.begin(), more.end(), "--temperature") == more.end())
      more.insert(more.end(), {"--temperature", "0.5"});
    return run(more);
  }
  static std::vector<Json> lines_of(const std::string& text) {
    std::vector<Json> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      lines.push_back(Json::parse(text.substr(at, end - at)));
      at = end + 1;
    }
    return lines;
  }
  static int64_t tokens_in(const std::string& text) {
    int64_t tokens = 0;
    for (const Json& line : lines_of(text)) tokens += line["tokens"].get<int64_t>();
    return tokens;
  }
  static void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(result.errors.substr(0, 9), "athanor: ");
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
    EXPECT_NE(result.errors.find("\n  hint: "), std::string::npos) << result.errors;
  }

  static TemporaryFolder* folder;
};
TemporaryFolder* GenerationTest::folder = nullptr;

TEST_F(GenerationTest, WritesTheSameTextForTheSameSeed) {
  const ProgramResult first = generate({"--prompt", "In the"});
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_EQ(first.output.substr(0, 6), "In the");
  EXPECT_GT(first.output.size(), 20u);
  EXPECT_NE(first.errors.find("40 tokens in "), std::string::npos) << first.errors;
  EXPECT_NE(first.errors.find("tok/s"), std::string::npos);
  EXPECT_EQ(generate({"--prompt", "In the", "--threads", "2"}).output, first.output);
  EXPECT_NE(generate({"--prompt", "In the", "--seed", "1"}).output, first.output);
  EXPECT_NE(generate({"--prompt", "In the", "--no-average"}).output, first.output);
  const ProgramResult likeliest = generate({"--prompt", "In the", "--temperature", "0"});
  EXPECT_EQ(generate({"--prompt", "In the", "--temperature", "0", "--seed", "1"}).output, likeliest.output);
  EXPECT_EQ(generate({"--prompt", "In the", "--top-k", "1"}).output, likeliest.output);
  EXPECT_EQ(generate({"--prompt", "In the", "--top-p", "0.000001"}).output, likeliest.output);
  // A checkpoint stands for its run; without a name it is the latest run.
  const ProgramResult by_file = run({"generate", "runs/demo/checkpoints/step_00000200.safetensors",
                                     "--max-tokens", "40", "--prompt", "In the", "--temperature", "0.5"});
  EXPECT_EQ(by_file.output, first.output) << by_file.errors;
  EXPECT_EQ(run({"generate", "--max-tokens", "40", "--prompt", "In the", "--temperature", "0.5"}).output,
            first.output);
}

// The texts of prompts together are those of each alone, whatever the batch.
TEST_F(GenerationTest, ManyPromptsInOneGo) {
  write("prompts.txt", "In the\nbeginning\n\nline 7\nIn the\nand it was so that\n");
  write("prompts.jsonl",
        "\"In the\"\n{\"prompt\": \"beginning\"}\n\"line 7\"\n\"In the\"\n\"and it was so that\"\n");
  const ProgramResult all = generate({"--file", "prompts.txt", "--json", "--batch", "1"});
  ASSERT_EQ(all.exit_code, 0) << all.errors;
  const std::vector<Json> lines = lines_of(all.output);
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_LE(lines[i]["tokens"], 40);
    const std::string prompt = lines[i]["prompt"];
    EXPECT_EQ(generate({"--prompt", prompt}).output, prompt + lines[i]["text"].get<std::string>() + "\n");
  }
  EXPECT_EQ(lines[0]["text"], lines[3]["text"]);
  for (const char* batch : {"2", "5", "64"}) {
    EXPECT_EQ(generate({"--file", "prompts.txt", "--json", "--batch", batch}).output, all.output);
    EXPECT_EQ(generate({"--file", "prompts.jsonl", "--json", "--batch", batch}).output, all.output);
  }
  const std::string plain = generate({"--file", "prompts.txt"}).output;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '-'), 4 * 3) << plain;
}

TEST_F(GenerationTest, EndsAtAStopText) {
  const std::vector<Json> free = lines_of(generate({"--prompt", "In the", "--json"}).output);
  const std::string text = free.at(0)["text"];
  const std::string stop = text.substr(10, 4);
  const std::vector<Json> stopped =
      lines_of(generate({"--prompt", "In the", "--json", "--stop", "\x01no", "--stop", stop}).output);
  EXPECT_EQ(stopped.at(0)["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.at(0)["ended_by"], "stop_text");
  EXPECT_EQ(free.at(0)["ended_by"], "length");
}

TEST_F(GenerationTest, BadOptionsAreRefused) {
  expect_refused({"generate", "runs/demo", "--max-tokens", "-1"}, "--max-tokens");
  expect_refused({"generate", "runs/demo", "--temperature", "hot"}, "--temperature");
  expect_refused({"generate", "runs/demo", "--top-p", "1.5"}, "--top-p");
  expect_refused({"generate", "runs/demo", "--top-p", "nan"}, "--top-p");
  expect_refused({"generate", "runs/demo", "--temperature", "nan"}, "--temperature");
  expect_refused({"generate", "runs/demo", "--batch", "0"}, "--batch");
  expect_refused({"generate", "runs/demo", "--precision", "fp12"}, "--precision fp12");
  expect_refused({"generate", "runs/demo", "--context", "100000"}, "--context 100000");
  expect_refused({"generate", "runs/demo", "--seed", "99999999999999999999"}, "does not fit in 64 bits");
  expect_refused({"generate", "runs/none"}, "runs/none");
  expect_refused({"generate", "runs/demo", "--file", "none.txt"}, "none.txt");
  write("bad.jsonl", "\"good\"\n{\"text\": 3}\n");
  expect_refused({"generate", "runs/demo", "--file", "bad.jsonl"}, "bad.jsonl: line 2");
  write("empty.txt", "\n\n");
  expect_refused({"generate", "runs/demo", "--file", "empty.txt"}, "empty.txt");
  EXPECT_EQ(run({"generate", "runs/demo", "--prompt", "x"}, "/dev/full").exit_code, 2);
}

// Its vocabulary would suit bytes, but nobody said that they are.
TEST_F(GenerationTest, AModelWithoutItsTokenizerIsNotTakenForOneOfBytes) {
  ASSERT_EQ(run({"export", "runs/demo", "-o", "published"}).exit_code, 0);
  system_files().remove(folder->path("published/tokenizer.json"));
  ASSERT_EQ(run({"import", "published", "-o", "imported"}).exit_code, 0);
  for (const char* model : {"published", "imported"}) {
    expect_refused({"generate", model, "--prompt", "x"}, "has no tokenizer.json");
    EXPECT_EQ(run({"generate", model, "--prompt", "x", "-n", "3", "--tokenizer", "bytes"}).exit_code, 0);
  }
}

TEST_F(GenerationTest, EvaluatesSetsAndFiles) {
  const ProgramResult sets = run({"evaluate", "runs/demo", "--json"});
  ASSERT_EQ(sets.exit_code, 0) << sets.errors;
  const std::vector<Json> lines = lines_of(sets.output);
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& line : lines) {
    EXPECT_GT(line["loss"], 0);
    EXPECT_NEAR(line["perplexity"].get<double>(), std::exp(line["loss"].get<double>()), 1e-6);
    EXPECT_GT(line["bits_per_byte"], 0);
  }
  // The text of 3000 bytes and its end: every token but the first.
  const auto held =
      std::find_if(lines.begin(), lines.end(), [](const Json& l) { return l["data"] == "held"; });
  ASSERT_NE(held, lines.end());
  EXPECT_EQ((*held)["tokens"], 3000);
  EXPECT_EQ((*held)["bytes"], 2999);
  const auto value = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", "runs/demo", "--json"});
    const ProgramResult result = run(more);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return lines_of(result.output).at(0);
  };
  const double loss = (*held)["loss"];
  EXPECT_NEAR(value({"--data", "held"})["loss"].get<double>(), loss, 1e-9);
  EXPECT_NEAR(value({"--data", "held_out.txt"})["loss"].get<double>(), loss, 1e-9);
  EXPECT_NEAR(value({"--data", "held", "--batch", "1"})["loss"].get<double>(), loss, 1e-6);
  EXPECT_NEAR(value({"--data", "held", "--batch", "7"})["loss"].get<double>(), loss, 1e-6);
  EXPECT_NE(value({"--data", "held", "--no-average"})["loss"].get<double>(), loss);
  // More context, better predictions.
  EXPECT_LT(value({"--data", "held", "--stride", "8"})["loss"].get<double>(), loss);
  EXPECT_EQ(value({"--data", "held", "--tokens", "1000"})["tokens"], 999);
  expect_refused({"evaluate", "runs/demo", "--data", "nothing"}, "nothing");
  write("user.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Nobody answers.\"}]}\n");
  expect_refused({"evaluate", "runs/demo", "--data", "user.jsonl"}, "no token of user.jsonl");
  expect_refused({"evaluate", "runs/demo", "--stride", "1000"}, "--stride 1000");
  expect_refused({"evaluate", "runs/demo", "--tokens", "-5"}, "--tokens");
  expect_refused({"evaluate", "runs/demo", "--sequence", "2000000000"}, "--sequence 2000000000");
  EXPECT_NE(run({"evaluate", "runs/demo"}).output.find("bits per byte"), std::string::npos);
}

// Ranks divide the prompts, or the model: each prompt's text is the one it would have alone.
TEST_F(GenerationTest, RanksWriteTheSameTexts) {
  const std::vector<std::string> prompts = {"--prompt", "In the",   "--prompt", "line",  "--prompt",
                                            "word",     "--prompt", "",         "--json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), prompts.begin(), prompts.end());
    return generate(more);
  };
  const ProgramResult one = with({});
  ASSERT_EQ(lines_of(one.output).size(), 4U) << one.errors;
  for (const char* ranks : {"2", "3"}) {
    const ProgramResult many = with({"--ranks", ranks, "--threads", "1"});
    EXPECT_EQ(many.exit_code, 0) << many.errors;
    EXPECT_EQ(many.output, one.output);
  }
  const ProgramResult shared = with({"--ranks", "2", "--tensor", "2", "--temperature", "0"});
  EXPECT_EQ(shared.exit_code, 0) << shared.errors;
  EXPECT_EQ(shared.output, with({"--temperature", "0"}).output);
  EXPECT_EQ(with({"--tensor", "2", "--temperature", "0"}).output, shared.output);
  // Two groups that share a model each; there are prompts for both.
  const ProgramResult groups =
      with({"--ranks", "4", "--tensor", "2", "--temperature", "0", "--threads", "1"});
  EXPECT_EQ(groups.exit_code, 0) << groups.errors;
  EXPECT_EQ(groups.output, shared.output);
  EXPECT_NE(groups.errors.find(fmt::format("{} tokens", tokens_in(shared.output))), std::string::npos)
      << groups.errors;
  expect_refused({"generate", "runs/demo", "--prompt", "a", "--ranks", "4", "--tensor", "3"},
                 "--tensor 3 does not divide --ranks 4");
}

// More ranks than prompts: some have nothing to do.
TEST_F(GenerationTest, RanksWithoutPromptsWait) {
  const std::vector<std::string> one = {"--prompt", "In the", "--temperature", "0"};
  std::vector<std::string> many = one;
  many.insert(many.end(), {"--ranks", "3", "--threads", "1"});
  EXPECT_EQ(generate(many).output, generate(one).output);
}

// A file of prompts, and the sampled texts of a model that two ranks share: each prompt draws its own
// numbers.
TEST_F(GenerationTest, RanksShareAFileOfPrompts) {
  std::string prompts;
  for (int i = 0; i < 11; ++i) prompts += fmt::format("word {}\n", i * i);
  write("words.txt", prompts);
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--file", "words.txt", "--json", "--batch", "3"});
    const ProgramResult result = generate(more);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output;
  };
  const std::string greedy = with({"--temperature", "0"}), drawn = with({"--seed", "7"});
  EXPECT_EQ(lines_of(greedy).size(), 11U);
  for (const char* ranks : {"2", "5"}) {
    EXPECT_EQ(with({"--temperature", "0", "--ranks", ranks, "--threads", "1"}), greedy);
    EXPECT_EQ(with({"--seed", "7", "--ranks", ranks, "--threads", "1"}), drawn);
  }
  EXPECT_EQ(with({"--temperature", "0", "--ranks", "6", "--tensor", "2", "--threads", "1"}), greedy);
  EXPECT_EQ(with({"--temperature", "0", "--ranks", "3", "--tensor", "3", "--threads", "1"}), greedy);
}

TEST_F(GenerationTest, RanksShareAnEvaluation) {
  const auto evaluate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", "runs/demo", "--data", "held_out.txt", "--json"});
    return run(more);
  };
  const Json one = Json::parse(evaluate({}).output);
  const std::vector<std::vector<std::string>> layouts = {
      {"--ranks", "2"},
      {"--ranks", "2", "--tensor", "2"},
      {"--ranks", "4", "--tensor", "2"},
      {"--ranks", "3", "--shard-weights"},
      {"--ranks", "4", "--tensor", "2", "--shard-weights"}};
  for (std::vector<std::string> layout : layouts) {
    layout.insert(layout.end(), {"--threads", "1"});
    const ProgramResult many = evaluate(layout);
    ASSERT_EQ(many.exit_code, 0) << many.errors;
    const Json scores = Json::parse(many.output);  // one line, of one rank
    EXPECT_EQ(scores["tokens"], one["tokens"]);
    EXPECT_EQ(scores["bytes"], one["bytes"]);
    EXPECT_NEAR(scores["loss"].get<double>(), one["loss"].get<double>(), 1e-5);
  }
  expect_refused({"evaluate", "runs/demo", "--shard-weights"}, "there is one rank with windows of its own");
  expect_refused({"evaluate", "runs/demo", "--tensor", "2", "--shard-weights"},
                 "there is one rank with windows of its own");
  expect_refused({"evaluate", "runs/demo", "--ranks", "4", "--tensor", "3"},
                 "--tensor 3 does not divide --ranks 4");
}

}  // namespace
}  // namespace athanor
