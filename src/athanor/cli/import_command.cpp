#include <fmt/core.h>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/output_folder.h"
#include "athanor/cli/run_folder.h"
#include "athanor/cli/stoppable_weights.h"
#include "athanor/hugging_face/exchange.h"
#include "athanor/hugging_face/weights.h"
#include "athanor/model/model.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/tokenizer_files.h"

namespace athanor {
namespace {

// The folder's tokenizer as the text of a tokenizer.json. One that is not understood hinders the import as
// little as one that is missing: token files need none.
std::string take_tokenizer(FileEnvironment& files, const std::string& folder, const ModelConfig& model,
                           std::string& notes) {
  if (!files.exists(join_path(folder, "tokenizer.json")) && !files.exists(join_path(folder, "vocab.json"))) {
    notes += "note: there is no tokenizer.json\n";
    return {};
  }
  try {
    const auto tokenizer = open_tokenizer(files, folder);
    if (tokenizer->vocabulary_size() > model.vocabulary) {
      notes += fmt::format("note: the tokenizer has {} ids, the model {}\n", tokenizer->vocabulary_size(),
                           model.vocabulary);
    }
    return write_tokenizer_json(tokenizer->definition());
  } catch (const Error& error) {
    notes += fmt::format("note: the tokenizer is left out: {}\n", error.message());
    return {};
  }
}

}  // namespace

void import_command(const ImportArguments& arguments) {
  FileEnvironment& files = system_files();
  OutputFolder output(files, arguments.output);
  const auto weights = HuggingFaceWeights::open(files, arguments.folder);
  const ModelConfig& model = weights.config().model;
  std::string configuration =
      fmt::format("# Imported from a {} model.\n{}", weights.config().model_type, model_toml(model));
  // What is computed with it at once must fit its table of positions.
  const int64_t usual = RunOptions().data.sequence_length;
  if (model.maximum_positions < usual) {
    configuration += fmt::format("\n[data]\nsequence_length = {}\n", model.maximum_positions);
  }
  std::string text;
  for (const std::string& note : weights.notes()) text += fmt::format("note: {}\n", note);
  CheckpointState state{{"configuration", configuration},
                        {"special_tokens", format_generation_config(weights.config().tokens)}};
  const std::string tokenizer = take_tokenizer(files, arguments.folder, model, text);
  if (!tokenizer.empty()) state["tokenizer"] = tokenizer;
  CheckpointFolder checkpoints(files, join_path(arguments.output, "checkpoints"), {});
  const SaveReport saved = import_weights(StoppableWeights(weights), checkpoints, state);
  if (!tokenizer.empty()) {
    write_file_atomically(files, join_path(arguments.output, "tokenizer.json"), tokenizer);
  }
  // Last: a folder with it is whole.
  write_file_atomically(files, join_path(arguments.output, configuration_file), configuration);
  text += fmt::format("{} model, {} parameters, {} in {}\n", weights.config().model_type,
                      format_count(static_cast<double>(parameter_count(model).total)),
                      format_bytes(static_cast<double>(saved.bytes)), saved.path);
  output.keep();
  write_output(printable_lines(text));
}

}  // namespace athanor
