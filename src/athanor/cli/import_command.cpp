#include <fmt/core.h>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/run_folder.h"
#include "athanor/hugging_face/exchange.h"
#include "athanor/hugging_face/weights.h"
#include "athanor/model/model.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

// Copies the folder's tokenizer in the form of tokenizer.json. One that is not understood hinders the import
// as little as one that is missing: token files need none.
std::string take_tokenizer(FileEnvironment& files, const ImportArguments& arguments,
                           const ModelConfig& model) {
  constexpr int64_t largest = int64_t{1} << 28;  // bytes
  const std::string published = join_path(arguments.folder, "tokenizer.json"),
                    taken = join_path(arguments.output, "tokenizer.json");
  if (!files.exists(published) && !files.exists(join_path(arguments.folder, "vocab.json"))) {
    return "note: there is no tokenizer.json\n";
  }
  try {
    const auto tokenizer = open_tokenizer(files, arguments.folder);
    if (files.exists(published)) {
      write_file_atomically(files, taken, read_file(files, published, largest));
    } else {
      tokenizer->save(files, taken);
    }
    if (tokenizer->vocabulary_size() <= model.vocabulary) return {};
    return fmt::format("note: the tokenizer has {} ids, the model {}\n", tokenizer->vocabulary_size(),
                       model.vocabulary);
  } catch (const Error& error) {
    return fmt::format("note: the tokenizer is left out: {}\n", error.message());
  }
}

}  // namespace

void import_command(const ImportArguments& arguments) {
  FileEnvironment& files = system_files();
  require_empty_folder(files, arguments.output);
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
  CheckpointFolder checkpoints(files, join_path(arguments.output, "checkpoints"), {});
  const SaveReport saved =
      import_weights(weights, checkpoints,
                     {{"configuration", configuration},
                      {"special_tokens", format_generation_config(weights.config().tokens)}});
  text += take_tokenizer(files, arguments, model);
  // Last: a folder with it is whole.
  write_file_atomically(files, join_path(arguments.output, configuration_file), configuration);
  text += fmt::format("{} model, {} parameters, {} in {}\n", weights.config().model_type,
                      format_count(static_cast<double>(parameter_count(model).total)),
                      format_bytes(static_cast<double>(saved.bytes)), saved.path);
  write_output(text);
}

}  // namespace athanor
