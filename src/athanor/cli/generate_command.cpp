#include <fmt/core.h>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_folder.h"
#include "athanor/cli/run_options.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/train/generate.h"
#include "athanor/train/run_state.h"

namespace athanor {
namespace {

constexpr int64_t default_length = 300;  // tokens, for runs that wrote no sample

// What a terminal may be sent: line breaks and tabs, and no other control character.
void show(const std::string& text) {
  std::string stretch;
  for (const char character : text) {
    if (character != '\n' && character != '\t') {
      stretch += character;
      continue;
    }
    write_output(printable(stretch) + character);
    stretch.clear();
  }
  write_output(printable(stretch));
}

// A checkpoint of before there were others holds no tokenizer: its run was one on bytes.
std::shared_ptr<const Tokenizer> tokenizer_of(const Checkpoint& checkpoint, int64_t vocabulary) {
  auto tokenizer = saved_tokenizer(checkpoint);
  if (!tokenizer) tokenizer = open_tokenizer(system_files(), "bytes");
  if (vocabulary < tokenizer->vocabulary_size()) {
    throw_user_error(fmt::format("the model has a vocabulary of {}, and its tokenizer one of {}", vocabulary,
                                 tokenizer->vocabulary_size()),
                     "its tokens have no text");
  }
  return tokenizer;
}

}  // namespace

void generate_command(const GenerateArguments& arguments) {
  FileEnvironment& files = system_files();
  const std::string folder = arguments.run.empty() ? latest_run(files, RunOptions().folder) : arguments.run;
  require_run(files, folder);
  RunConfiguration run;
  apply_toml(run.table, configuration_of(files, folder), join_path(folder, configuration_file));
  for (const std::string& setting : arguments.settings) run.table.apply_setting(setting);
  validate(run.options);
  CheckpointFolder checkpoints(files, join_path(folder, "checkpoints"), {run.options.checkpoint.keep});
  const LatestCheckpoint latest = checkpoints.find_latest();
  if (!latest.checkpoint) {
    throw_user_error(fmt::format("{} has no checkpoint yet", folder),
                     "a run is saved at its end, and every "
                     "checkpoint.every steps");
  }

  const auto tokenizer = tokenizer_of(*latest.checkpoint, run.options.model.vocabulary);
  EngineOptions options;
  options.model = run.options.model;
  options.compile = run.options.compile;
  options.kernels = run.options.kernels;
  options.threads = run.options.threads;
  options.sequence_length = run.options.data.sequence_length;
  options.micro_batch_counts.clear();
  options.predict = true;
  Engine engine(std::move(options));
  engine.allocate();
  load_run(*latest.checkpoint, engine);

  const SampleOptions& sample = run.options.sample;
  const std::string prompt = sample.prompt.empty() ? "\n" : sample.prompt;
  show(prompt);
  IncrementalDecoder decoder(tokenizer, {.continuation = true});
  const std::optional<int32_t> end_of_text = tokenizer->end_of_text();
  generate(engine, tokenizer->encode(prompt), tokenizer->vocabulary_size(),
           {sample.length > 0 ? sample.length : default_length, sample.temperature, sample.top_k,
            static_cast<uint64_t>(arguments.seed)},
           [&](int32_t token) {
             if (token == end_of_text) return false;
             show(decoder.append(token));
             return true;
           });
  show(decoder.finish() + "\n");
}

}  // namespace athanor
