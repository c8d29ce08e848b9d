// Speed of encoding and of training a tokenizer: GPT-2's vocabulary on one thread; 4,096 tokens from the
// Bible and 16,384 from a dictionary on two.
//
//   ./run bench tokenizer [--json] [--repetitions N] [--bible FILE] [--dictionary FILE]
//
// Encoding begins each time with a tokenizer that has seen nothing yet. Medians.

#include "athanor/tokenizer/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/file_environment.h"
#include "athanor/machine/host.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/train.h"
#include "support/median.h"
#include "support/options.h"

namespace athanor {
namespace {

struct Arguments {
  bool json = false;
  int repetitions = 5;
  std::string bible = "data/bible.txt", dictionary = "data/dictionary.txt",
              vocabulary = "tests/data/gpt2/vocab.json";
};

// The text as one document.
class WholeText final : public TextSource {
 public:
  explicit WholeText(const std::string& text) : text_(text) {}
  Next next(std::string& piece) override {
    constexpr size_t piece_bytes = size_t{1} << 20;
    piece = text_.substr(std::min(position_, text_.size()), piece_bytes);
    position_ += piece_bytes;
    return piece.empty() ? Next::end : position_ < text_.size() ? Next::part : Next::document;
  }

 private:
  const std::string& text_;
  size_t position_ = 0;
};

double seconds_since(int64_t begin) {
  return static_cast<double>(monotonic_ns() - begin) * 1e-9;
}

nlohmann::ordered_json measure(const std::string& name, const std::string& path, int64_t vocabulary,
                               const Arguments& arguments) {
  const std::string text = read_file(system_files(), path, int64_t{1} << 30);
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  std::vector<double> encode, train;
  size_t tokens = 0;
  for (int i = 0; i < arguments.repetitions; ++i) {
    const auto tokenizer = open_tokenizer(system_files(), arguments.vocabulary);
    const int64_t begin = monotonic_ns();
    tokens = tokenizer->encode(text).size();
    encode.push_back(seconds_since(begin));
  }
  for (int i = 0; i < std::min(3, arguments.repetitions); ++i) {
    WholeText source(text);
    TokenizerTrainingOptions options;
    options.vocabulary = vocabulary;
    options.special_tokens = {"<|endoftext|>"};
    options.threads = 2;
    const int64_t begin = monotonic_ns();
    train_tokenizer(source, options);
    train.push_back(seconds_since(begin));
  }
  nlohmann::ordered_json row;
  row["text"] = name;
  row["bytes"] = text.size();
  row["tokens"] = tokens;
  row["encode_mb_per_second_per_core"] = megabytes / median(encode);
  row["train_vocabulary"] = vocabulary;
  row["train_seconds"] = median(train);
  row["train_mb_per_second"] = megabytes / median(train);
  row["processor"] = processor_name();
  return row;
}

void run(const Arguments& arguments) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  rows.push_back(measure("bible", arguments.bible, 4096, arguments));
  rows.push_back(measure("dictionary", arguments.dictionary, 16384, arguments));
  if (arguments.json) {
    fmt::print("{}\n", rows.dump());
    return;
  }
  for (const auto& row : rows) {
    fmt::print("{:<11}{:>8.1f} MB/s encoding on one thread ({} tokens), {:.2f} s to train {} tokens on two\n",
               row["text"].get<std::string>(), row["encode_mb_per_second_per_core"].get<double>(),
               row["tokens"].get<int64_t>(), row["train_seconds"].get<double>(),
               row["train_vocabulary"].get<int64_t>());
  }
}

}  // namespace
}  // namespace athanor

int main(int count, char** values) {
  athanor::Arguments arguments;
  athanor::BenchmarkOptions options("Speed of encoding and of training a tokenizer.");
  options.flag("--json", arguments.json, "a JSON array");
  options.number("--repetitions", arguments.repetitions, 1, 1 << 20, "the median of so many");
  options.text("--bible", arguments.bible, "the smaller text");
  options.text("--dictionary", arguments.dictionary, "the larger text");
  options.text("--vocabulary", arguments.vocabulary, "GPT-2's vocab.json");
  return options.run(count, values, [&] { athanor::run(arguments); });
}
