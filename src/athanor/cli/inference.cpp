#include "athanor/cli/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_folder.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/train/load_weights.h"

namespace athanor {
namespace {

struct PrecisionName {
  const char* name;
  Precision precision;
};
constexpr std::array<PrecisionName, 3> precision_names = {
    {{"fp32", Precision::fp32}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}}};

Precision precision_of(const std::string& name, const WeightReader& weights) {
  if (name.empty()) {
    const WeightEntry* entry = weights.find("embedding.token.weight");
    if (entry != nullptr && entry->dtype == DType::bf16) return Precision::bf16;
    if (entry != nullptr && entry->dtype == DType::fp16) return Precision::fp16;
    return Precision::fp32;
  }
  for (const PrecisionName& known : precision_names) {
    if (name == known.name) return known.precision;
  }
  throw_user_error(fmt::format("--precision {}: there is no such precision", printable(name)),
                   "there are fp32, bf16, fp16");
}

// The options of the run that the folder, or the folder of the checkpoint, belongs to.
std::optional<RunOptions> run_at(FileEnvironment& files, const std::string& path) {
  for (const std::string& folder : {path, join_path(parent_directory(path), "..")}) {
    if (!holds_run(files, folder)) continue;
    RunConfiguration run;
    apply_toml(run.table, configuration_of(files, folder), join_path(folder, configuration_file));
    if (run.options.data.train.empty() && run.options.data.blend.empty())
      continue;  // an import, which has no data
    return run.options;
  }
  return std::nullopt;
}

std::shared_ptr<const Tokenizer> tokenizer_for(FileEnvironment& files, const InferenceArguments& arguments,
                                               const ModelSource& source) {
  if (!arguments.tokenizer.empty()) return open_tokenizer(files, arguments.tokenizer);
  return tokenizer_of(files, source);
}

}  // namespace

EngineOptions Inference::engine_options() const {
  EngineOptions options;
  options.model = model;
  options.compile.precision = precision;
  options.threads = threads;
  options.micro_batch_counts.clear();
  return options;
}

Inference open_inference(const InferenceArguments& arguments, const InferenceRanks& ranks) {
  FileEnvironment& files = system_files();
  Inference inference;
  inference.path = arguments.model.empty() ? latest_run(files, RunOptions().folder) : arguments.model;
  const ModelSource source = open_model_source(files, inference.path);
  for (const std::string& note : source.notes) ranks.note(note);
  inference.model = source.model;
  inference.weights = source.weights;
  inference.tokenizer = tokenizer_for(files, arguments, source);
  for (const int64_t id : source.tokens.end) inference.end_ids.push_back(static_cast<int32_t>(id));
  if (inference.tokenizer != nullptr && inference.tokenizer->end_of_text())
    inference.end_ids.push_back(*inference.tokenizer->end_of_text());
  inference.run = run_at(files, inference.path);
  if (inference.run) inference.trained_length = inference.run->data.sequence_length;
  inference.precision = precision_of(arguments.precision, *inference.weights);
  inference.averages = !arguments.no_average && has_averages(*inference.weights);
  inference.threads = arguments.threads;
  return inference;
}

void require_tokenizer(const Inference& inference) {
  if (inference.tokenizer != nullptr) return;
  throw_user_error(fmt::format("{} has no tokenizer.json: its {} tokens have no text", inference.path,
                               inference.model.vocabulary),
                   "name the tokenizer with --tokenizer; `--tokenizer bytes` if its ids are bytes");
}

std::unique_ptr<Engine> load_engine(const Inference& inference, EngineOptions options,
                                    const InferenceRanks& ranks) {
  ranks.apply(options);
  auto engine = std::make_unique<Engine>(std::move(options));
  for (const std::string& note : engine->programs().notes) ranks.note(note);
  engine->allocate();
  load_weights(*engine, *inference.weights, inference.averages);
  return engine;
}

}  // namespace athanor
