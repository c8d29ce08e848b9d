#include "athanor/train/report_tables.h"

#include <gtest/gtest.h>

#include <sstream>

#include "athanor/model/model.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The words of the line about a parameter.
std::vector<std::string> line_about(const std::string& text, const std::string& parameter) {
  for (const std::string& line : lines_of(text)) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (!words.empty() && words[0] == parameter) return words;
  }
  return {};
}

using Words = std::vector<std::string>;

TEST(ReportTables, Parameters_P133_ShowRoleDecayAndRate) {
  EngineOptions options = tiny_options("gpt2");
  options.compile.optimizer.weight_decay = 0.25;
  options.compile.optimizer.bias_rate = 2;
  const Engine engine(options);
  const std::string table = parameter_table(engine.programs(), options.model);
  EXPECT_EQ(line_about(table, "embedding.token.weight"),
            (Words{"embedding.token.weight", "[37,16]", "embedding", "0.25", "1", "592"}));
  EXPECT_EQ(line_about(table, "block.*.mlp.up.weight"),
            (Words{"block.*.mlp.up.weight", "[24,16]", "matrix", "0.25", "1", "768"}));
  EXPECT_EQ(line_about(table, "block.*.mlp.up.bias"),
            (Words{"block.*.mlp.up.bias", "[24]", "bias", "0", "2", "48"}));
  EXPECT_EQ(line_about(table, "final_norm.weight"),
            (Words{"final_norm.weight", "[16]", "norm", "0", "1", "16"}));
  options.compile.optimizer.decay_embeddings = false;
  options.compile.optimizer.decay_norms = options.compile.optimizer.decay_biases = true;
  const Engine other(options);
  const std::string changed = parameter_table(other.programs(), options.model);
  EXPECT_EQ(line_about(changed, "embedding.token.weight").at(3), "0");
  EXPECT_EQ(line_about(changed, "block.*.attention_norm.weight").at(3), "0.25");
  EXPECT_EQ(line_about(changed, "block.*.attention_norm.bias").at(3), "0.25");
}

// Every parameter has its line, and the elements add up.
TEST(ReportTables, ElementsAddUp) {
  for (const char* family : {"gpt2", "llama"}) {
    const EngineOptions options = tiny_options(family);
    const Engine engine(options);
    const auto lines = lines_of(parameter_table(engine.programs(), options.model));
    int64_t sum = 0;
    for (size_t i = 1; i + 1 < lines.size(); ++i) sum += std::stoll(lines[i].substr(lines[i].rfind(' ')));
    EXPECT_EQ(sum, parameter_count(options.model).total);
    EXPECT_EQ(std::stoll(lines.back()), sum);
  }
}

TEST(ReportTables, MemoryIsThatOfTheLargestProgram) {
  EngineOptions options = tiny_options("gpt2");
  options.generation = GenerationShape::of(1, 8);
  const Engine engine(options);
  const std::string text = memory_summary(engine.programs());
  for (const char* part :
       {"memory: ", "planned (", "master weights ", "gradients ", "optimizer state ", "saved "}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace athanor
