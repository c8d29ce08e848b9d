#include "athanor/cli/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/option_value.h"
#include "athanor/cli/run_folder.h"
#include "athanor/hugging_face/weights.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "athanor/train/run_state.h"

namespace athanor {
namespace {

constexpr const char* tokenizer_name = "tokenizer.json";

std::string tokenizer_in(FileEnvironment& files, const std::string& folder) {
  const std::string path = join_path(folder, tokenizer_name);
  return files.exists(path) ? path : std::string();
}

// As others publish them: more files beside tokenizer.json, or GPT-2's pair.
std::string published_tokenizer(FileEnvironment& files, const std::string& folder) {
  for (const char* name : {tokenizer_name, "vocab.json"}) {
    if (files.exists(join_path(folder, name))) return folder;
  }
  return {};
}

ModelConfig model_of(const std::string& configuration, const std::string& where) {
  RunConfiguration run;
  apply_toml(run.table, configuration, where);
  validate(run.options.model);
  return run.options.model;
}

// A checkpoint says its model itself, so that it can be moved away from its run.
ModelSource of_checkpoint(Checkpoint checkpoint) {
  ModelSource source;
  const CheckpointState& state = checkpoint.state();
  const auto text = [&](const char* name) {
    const auto found = state.find(name);
    return found == state.end() ? std::string() : found->second;
  };
  if (text("configuration").empty()) {
    throw_user_error(fmt::format("'{}' does not say what model it is of", checkpoint.path()),
                     "it was not written by a run or an import");
  }
  source.model = model_of(text("configuration"), fmt::format("the configuration in {}", checkpoint.path()));
  if (const std::string progress = text("progress"); !progress.empty()) {
    const RunProgress parsed = parse_run_progress(progress);
    source.updates = parsed.optimizer_step + parsed.earlier_updates;
  }
  source.tokenizer_json = text("tokenizer");
  if (const std::string tokens = text("special_tokens"); !tokens.empty()) {
    source.tokens = parse_special_token_ids(tokens, checkpoint.path());
  }
  source.weights = std::make_shared<const CheckpointWeights>(std::move(checkpoint));
  return source;
}

ModelSource of_run(FileEnvironment& files, const std::string& folder) {
  CheckpointFolder checkpoints(files, join_path(folder, "checkpoints"), {});
  LatestCheckpoint latest = checkpoints.find_latest();
  if (!latest.checkpoint) {
    throw_user_error(fmt::format("{} has no checkpoint yet", folder),
                     "a run is saved at its end, and every checkpoint.every steps");
  }
  ModelSource source = of_checkpoint(std::move(*latest.checkpoint));
  source.notes = latest.notes;
  source.tokenizer = tokenizer_in(files, folder);
  return source;
}

ModelSource of_hugging_face(FileEnvironment& files, const std::string& folder) {
  auto weights = std::make_shared<const HuggingFaceWeights>(HuggingFaceWeights::open(files, folder));
  ModelSource source;
  source.model = weights->config().model;
  source.tokens = weights->config().tokens;
  source.notes = weights->notes();
  source.tokenizer = published_tokenizer(files, folder);
  source.weights = std::move(weights);
  return source;
}

[[noreturn]] void refuse_source(FileEnvironment& files, const std::string& path) {
  throw_user_error(files.exists(path)
                       ? fmt::format("'{}' holds no model: no {}, no config.json", path, configuration_file)
                       : fmt::format("there is no '{}'", path),
                   "give the folder of a run, a checkpoint file (step_N.safetensors), the output of `athanor "
                   "import`, or a "
                   "folder with config.json and safetensors files");
}

// Differences in these give other numbers of parameters, or other meanings to them.
bool is_structure(std::string_view option, const ModelConfig& model) {
  static constexpr std::array structure = {
      "model.layers",     "model.width",          "model.heads", "model.key_value_heads",
      "model.head_dim",   "model.feed_forward",   "model.norm",  "model.positions",
      "model.vocabulary", "model.query_key_norm", "model.bias",  "model.feed_forward_kind",
      "model.tied_head",  "model.parallel_block"};
  if (option == "model.maximum_positions") return model.positions == PositionKind::learned;
  return std::find(structure.begin(), structure.end(), option) != structure.end();
}

// Options of training, and names.
bool is_no_part_of_the_function(std::string_view option) {
  static constexpr std::array<std::string_view, 6> others = {"model.family",  "model.base",
                                                             "model.dropout", "model.label_smoothing",
                                                             "model.z_loss",  "model.initial_deviation"};
  return std::find(others.begin(), others.end(), option) != others.end();
}

ModelConfig with_all_sizes(ModelConfig model) {
  model.key_value_heads = model.key_value_heads_or_default();
  model.head_dim = model.head_dim_or_default();
  model.feed_forward = model.feed_forward_or_default();
  return model;
}

std::vector<std::string> compare_models(const std::string& path, const ModelConfig& source,
                                        const ModelConfig& here) {
  RunConfiguration theirs, ours;
  theirs.options.model = with_all_sizes(source);
  ours.options.model = with_all_sizes(here);
  std::string faults;
  std::vector<std::string> notes;
  for (const OptionDifference& difference : differences(theirs.table, ours.table)) {
    const std::string& name = difference.name;
    if (!name.starts_with("model.") || is_no_part_of_the_function(name)) continue;
    const std::string line =
        fmt::format("{} is {} there and {} here", name, difference.before, difference.after);
    if (is_structure(name, here)) {
      faults += "\n  " + line;
    } else {
      notes.push_back(fmt::format("{} ({})", line, path));
    }
  }
  if (!faults.empty()) {
    throw_user_error(fmt::format("train.init_from: the model of '{}' is another one:{}", path, faults),
                     "leave these options out, and the run takes the model of those weights");
  }
  return notes;
}

}  // namespace

ModelSource open_model_source(FileEnvironment& files, const std::string& path) {
  if (is_folder(files, path)) {
    if (holds_run(files, path)) return of_run(files, path);
    if (is_hugging_face_folder(files, path)) return of_hugging_face(files, path);
    refuse_source(files, path);
  }
  if (!files.exists(path)) refuse_source(files, path);
  ModelSource source = of_checkpoint(Checkpoint::open(files, path));
  // Beside the checkpoint, or where its run keeps it.
  const std::string folder = parent_directory(path);
  source.tokenizer = tokenizer_in(files, folder);
  if (source.tokenizer.empty()) source.tokenizer = tokenizer_in(files, join_path(folder, ".."));
  return source;
}

ModelSource describe_model_source(FileEnvironment& files, const std::string& path) {
  ModelSource source;
  if (is_folder(files, path) && holds_run(files, path)) {
    source.model = model_of(configuration_of(files, path), join_path(path, configuration_file));
    source.tokenizer = tokenizer_in(files, path);
    return source;
  }
  if (is_folder(files, path) && is_hugging_face_folder(files, path)) {
    source.model = read_hugging_face_config(files, path).model;
    source.tokenizer = published_tokenizer(files, path);
    return source;
  }
  return open_model_source(files, path);
}

std::shared_ptr<const Tokenizer> tokenizer_of(FileEnvironment& files, const ModelSource& source) {
  if (!source.tokenizer_json.empty()) {
    return std::make_shared<const Tokenizer>(read_tokenizer_json(
        source.tokenizer_json, fmt::format("the tokenizer in {}", source.weights->path())));
  }
  return source.tokenizer.empty() ? nullptr : open_tokenizer(files, source.tokenizer);
}

std::string model_toml(const ModelConfig& model) {
  RunConfiguration run;
  run.options.model = model;
  std::string text = "[model]\n";
  for (const OptionRow& row : run.table.rows()) {
    if (!row.name().starts_with("model.") || row.name() == run.table.base_option()) continue;
    text += fmt::format("{} = {}\n", row.name().substr(6), to_toml(row.value()));
  }
  return text;
}

void load_run_options(RunConfiguration& run, FileEnvironment& files, const std::string& file,
                      const std::vector<std::string>& settings) {
  const auto source_text = [&](const std::string& path) {
    const ModelSource source = describe_model_source(files, path);
    std::string text = model_toml(source.model);
    if (!source.tokenizer.empty()) {
      text += fmt::format("\n[data]\ntokenizer = {}\n", quote_toml(source.tokenizer));
    }
    return text;
  };
  std::vector<std::string> base_folders = model_configuration_folders();
  if (!file.empty()) {  // a folder of configurations works from anywhere
    const std::string beside = parent_directory(file);
    for (const char* folder : {".", "models", "../models"}) {
      base_folders.push_back(std::string(folder) == "." ? beside : join_path(beside, folder));
    }
  }
  load_options(run.table, files,
               {.file = file,
                .settings = settings,
                .base_folders = std::move(base_folders),
                .source_option = "train.init_from",
                .source_text = source_text});
}

InitialWeights open_initial_weights(FileEnvironment& files, const RunOptions& options) {
  ModelSource source = open_model_source(files, options.init_from);
  InitialWeights initial{
      .reader = source.weights, .updates = source.updates, .tokenizer = {}, .notes = source.notes};
  try {
    if (const auto tokenizer = tokenizer_of(files, source)) initial.tokenizer = tokenizer->identity();
  } catch (const Error& error) {
    initial.notes.push_back(fmt::format("the tokenizer of the weights is not known: {}", error.message()));
  }
  const auto notes = compare_models(options.init_from, source.model, options.model);
  initial.notes.insert(initial.notes.end(), notes.begin(), notes.end());
  return initial;
}

}  // namespace athanor
