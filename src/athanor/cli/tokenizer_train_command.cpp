#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/option_value.h"
#include "athanor/data/input_files.h"
#include "athanor/data/text_documents.h"
#include "athanor/device/thread_team.h"
#include "athanor/machine/host.h"
#include "athanor/observe/format.h"
#include "athanor/observe/progress_bar.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/tokenizer/train.h"
#include "athanor/train/interrupt.h"

namespace athanor {
namespace {

constexpr int64_t least_memory = 32'000'000;
constexpr int most_threads = 1024;

SplitPattern pattern_of(const std::string& name) {
  if (name == "gpt2") return SplitPattern::gpt2;
  if (name == "llama3") return SplitPattern::llama3;
  throw_user_error(fmt::format("--pattern {}: there is no such splitting pattern", printable(name)),
                   "there are gpt2 and llama3");
}

// Bytes; empty: half of what the machine has free.
int64_t memory_of(const std::string& text) {
  if (text.empty()) return std::max(available_memory_bytes() / 2, least_memory);
  int64_t bytes = 0;
  try {
    bytes = std::get<int64_t>(parse_option_value(OptionType::integer, text));
  } catch (const Error& error) {
    throw_user_error("--memory: " + error.message(), "bytes, also as 500M or 4G");
  }
  if (bytes < least_memory) {
    throw_user_error(fmt::format("--memory {}: too little", text),
                     fmt::format("the least is {}M", least_memory / 1'000'000));
  }
  return bytes;
}

// Throws the error that writing to it would end with.
void require_writable(FileEnvironment& files, const std::string& output) {
  const std::string trial = fmt::format("{}.trial.tmp-{}", output, getpid());
  files.create(trial, {.mode = CreateMode::replace, .expected_bytes = 0})->close();
  files.remove(trial);
}

std::string read_standard_input(size_t most) {
  std::string bytes(most, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), stdin));
  if (std::ferror(stdin) != 0) throw_user_error("cannot read standard input");
  return bytes;
}

std::string megabytes(double bytes) {
  return fmt::format("{:.1f} MB", bytes * 1e-6);
}

}  // namespace

void tokenizer_train_command(const TokenizerTrainArguments& arguments) {
  FileEnvironment& files = system_files();
  TokenizerTrainingOptions options;
  options.vocabulary = arguments.vocabulary;
  options.pattern = pattern_of(arguments.pattern);
  options.special_tokens = arguments.special_tokens;
  if (arguments.threads < 0 || arguments.threads > most_threads) {
    throw_user_error(fmt::format("--threads {} is not between 0 and {}", arguments.threads, most_threads),
                     "0 stands for all cores");
  }
  options.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : available_cores();
  options.memory_bytes = memory_of(arguments.memory);
  options.files = &files;
  // Beside the output: where there is room for that, and not in a /tmp that may be memory.
  options.scratch = fmt::format("{}.words.tmp-{}-", arguments.output, getpid());

  // What cannot be written is better known before hours of work.
  const auto there = files.status(arguments.output);
  if (arguments.output.empty() || (there && there->is_directory)) {
    throw_user_error(fmt::format("--output '{}' is no name of a file", printable(arguments.output)),
                     "give the tokenizer.json to write");
  }
  require_file_name(files, arguments.output);
  const std::string folder = parent_directory(arguments.output);
  const auto status = files.status(folder);
  if (!status || !status->is_directory) {
    throw_user_error(
        fmt::format("--output {}: there is no folder {}", printable(arguments.output), printable(folder)),
        "make it first");
  }
  require_writable(files, arguments.output);

  std::vector<InputFile> inputs;
  TextDocuments::Stream stream;
  for (const std::string& name : arguments.inputs) {
    if (name == "-") {
      stream = read_standard_input;
      continue;
    }
    for (InputFile& file : find_input_files(files, name)) inputs.push_back(std::move(file));
  }
  if (is_one_of(inputs, arguments.output)) {
    throw_user_error(
        fmt::format("'{}' is both a text to read and the file to write", printable(arguments.output)),
        "choose another output");
  }
  TextDocuments documents(files, std::move(inputs), {arguments.separator, arguments.field},
                          std::move(stream));
  const bool known_size =
      std::find(arguments.inputs.begin(), arguments.inputs.end(), "-") == arguments.inputs.end();

  const int64_t begun = monotonic_ns();
  const Interrupts interrupts(0, begun);
  const std::unique_ptr<ProgressBar> bar = make_progress_bar(stderr);
  int64_t learning_since = 0;
  options.progress = [&](const TokenizerTrainingProgress& progress) {
    if (const std::string reason = interrupts.stop_reason(); !reason.empty()) {
      throw_user_error(fmt::format("stopped: {}; no tokenizer was written", reason), "run the command again");
    }
    const int64_t now = monotonic_ns();
    if (progress.tokens > 0 && learning_since == 0) learning_since = now;
    if (!bar->is_due()) return;
    if (progress.tokens > 0) {
      bar->update({"learning tokens", progress.tokens, options.vocabulary, format_exact(progress.tokens)});
    } else {
      const auto read = static_cast<double>(progress.text_bytes);
      bar->update({"counting words", progress.text_bytes, known_size ? documents.file_bytes() : 0,
                   fmt::format("{}, {}/s", megabytes(read), megabytes(read / seconds_of(now - begun + 1)))});
    }
  };
  TrainedTokenizer trained = train_tokenizer(documents, options);
  bar->finish();
  if (trained.text_bytes == 0)
    throw_user_error("there is no text to learn from", "give files with text in them");
  const Tokenizer tokenizer(std::move(trained.definition));
  tokenizer.save(files, arguments.output);
  const int64_t ended = monotonic_ns();
  if (learning_since == 0) learning_since = ended;
  if (tokenizer.vocabulary_size() < options.vocabulary) {
    write_message(fmt::format(
        "athanor: the text gives {} tokens only, not the {} asked for: all its words are tokens\n",
        format_exact(tokenizer.vocabulary_size()), format_exact(options.vocabulary)));
  }
  write_output(fmt::format(
      "{}: {} tokens from {} of text with {} different words, in {} (counting words {}, "
      "learning {})\n",
      printable(arguments.output), format_exact(tokenizer.vocabulary_size()),
      megabytes(static_cast<double>(trained.text_bytes)), format_exact(trained.words),
      format_seconds(seconds_of(ended - begun)), format_seconds(seconds_of(learning_since - begun)),
      format_seconds(seconds_of(ended - learning_since))));
}

}  // namespace athanor
