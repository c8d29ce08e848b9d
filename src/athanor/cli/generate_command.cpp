#include <fmt/core.h>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_folder.h"
#include "athanor/cli/run_options.h"
#include "athanor/data/byte_vocabulary.h"
#include "athanor/observe/format.h"
#include "athanor/train/generate.h"
#include "athanor/train/run_state.h"

namespace athanor {
namespace {

constexpr int64_t default_length = 300;  // tokens, for runs that wrote no sample

// Passes text on in whole characters: a byte of the vocabulary may be a part of one only.
class CharacterStream {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      const auto code = static_cast<unsigned char>(byte);
      if (code < 0x80 || code >= 0xc0 || held_.size() >= 4) flush();
      held_ += byte;
      if (code < 0x80) flush();
    }
  }
  void flush() {
    if (held_ == "\n" || held_ == "\t") {
      write_output(held_);
    } else if (!held_.empty()) {
      write_output(printable(held_));
    }
    held_.clear();
  }

 private:
  std::string held_;
};

}  // namespace

void generate_command(const GenerateArguments& arguments) {
  FileEnvironment& files = system_files();
  const std::string folder = arguments.run.empty() ? latest_run(files, RunOptions().folder) : arguments.run;
  require_run(files, folder);
  RunConfiguration run;
  apply_toml(run.table, configuration_of(files, folder), join_path(folder, configuration_file));
  for (const std::string& setting : arguments.settings) run.table.apply_setting(setting);
  validate(run.options);
  if (run.options.model.vocabulary < byte_vocabulary::size) {
    throw_user_error(fmt::format("the model has a vocabulary of {}, not that of bytes ({})",
                                 run.options.model.vocabulary, byte_vocabulary::size),
                     "its tokens have no text");
  }
  CheckpointFolder checkpoints(files, join_path(folder, "checkpoints"), {run.options.checkpoint.keep});
  const LatestCheckpoint latest = checkpoints.find_latest();
  if (!latest.checkpoint) {
    throw_user_error(fmt::format("{} has no checkpoint yet", folder),
                     "a run is saved at its end, and every "
                     "checkpoint.every steps");
  }

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
  CharacterStream output;
  output.add(prompt);
  generate(engine, byte_vocabulary::encode(prompt), byte_vocabulary::size,
           {sample.length > 0 ? sample.length : default_length, sample.temperature, sample.top_k,
            static_cast<uint64_t>(arguments.seed)},
           [&](int32_t token) {
             if (token == byte_vocabulary::end_of_text) return false;
             output.add(byte_vocabulary::decode({&token, 1}));
             return true;
           });
  output.add("\n");
}

}  // namespace athanor
