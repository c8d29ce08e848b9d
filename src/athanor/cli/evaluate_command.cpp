#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/inference.h"
#include "athanor/cli/inference_ranks.h"
#include "athanor/data/open_source.h"
#include "athanor/observe/format.h"
#include "athanor/train/data_sets.h"
#include "athanor/train/evaluate.h"
#include "athanor/train/interrupt.h"

namespace athanor {
namespace {

struct Set {
  std::string name;
  std::shared_ptr<const TokenSource> tokens;
  TokenRange range;
  bool packed = false;  // documents see nothing of each other
};

// The validation sets of the model's own run.
std::vector<Set> sets_of_run(const Inference& inference) {
  RunOptions options = *inference.run;
  options.resume = true;  // nothing is planned for training
  std::vector<Set> sets;
  for (const ValidationSet& set : open_data_sets(system_files(), options, 0).validation) {
    sets.push_back({set.name,
                    {set.samples, &set.samples->tokens()},
                    set.samples->sampler().range(),
                    set.samples->is_packed()});
  }
  return sets;
}

std::vector<Set> sets_of(const EvaluateArguments& arguments, const Inference& inference) {
  FileEnvironment& files = system_files();
  const std::string& data = arguments.data;
  const bool names_file = files.exists(data);
  if (inference.run && !names_file) {
    std::vector<Set> sets = sets_of_run(inference);
    if (data.empty() && !sets.empty()) return sets;
    std::erase_if(sets, [&](const Set& set) { return set.name != data; });
    if (!sets.empty()) return sets;
  }
  if (data.empty()) {
    throw_user_error(fmt::format("{} has no validation set", inference.path), "name the data with --data");
  }
  for (const InputFile& input : find_input_files(files, data)) {
    if (input.kind == InputKind::text || input.kind == InputKind::json_lines) require_tokenizer(inference);
  }
  SourceOptions options{.tokenizer = inference.tokenizer,
                        .text = {},
                        .cache_directory = DataOptions().cache,
                        .vocabulary_limit = inference.model.vocabulary};
  if (inference.run) {
    options.text.separator = inference.run->data.separator;
    options.text.field = inference.run->data.field;
    options.text.chat = inference.run->data.chat;
    options.cache_directory = inference.run->data.cache;
  }
  const auto tokens = open_source(files, data, options);
  const uint32_t made_by = tokens->tokenizer_identity();
  if (made_by != 0 && inference.tokenizer && made_by != inference.tokenizer->identity()) {
    throw_user_error(fmt::format("{} was made with another tokenizer than the model's", data),
                     "make it anew from its text, or give the text itself");
  }
  return {{data, tokens, {0, tokens->token_count()}}};
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::string json_line(const std::string& name, const Scores& scores) {
  nlohmann::ordered_json json;
  json["data"] = name;
  json["tokens"] = scores.tokens;
  json["loss"] = number_or_null(scores.loss());
  json["perplexity"] = number_or_null(scores.perplexity());
  json["bytes"] = scores.bytes >= 0 ? nlohmann::ordered_json(scores.bytes) : nlohmann::ordered_json();
  json["bits_per_byte"] = number_or_null(scores.bits_per_byte());
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string text_line(const std::string& name, const Scores& scores) {
  return fmt::format("{}: loss {}, perplexity {}, {}, {}\n", printable(name), format_loss(scores.loss()),
                     format_loss(scores.perplexity()),
                     scores.bytes < 0 ? "bits per byte not known (no tokenizer)"
                     : scores.bytes == 0
                         ? "no bytes"
                         : fmt::format("{} bits per byte", format_loss(scores.bits_per_byte())),
                     format_counted(scores.tokens, "token"));
}

// Percentages on a terminal.
class Progress {
 public:
  bool operator()(int64_t done, int64_t total) {
    const int64_t percent = 100 * done / std::max<int64_t>(1, total);
    if (isatty(STDERR_FILENO) == 1 && percent != shown_) write_message(fmt::format("\r{} %", percent));
    shown_ = percent;
    return true;
  }
  void clear() const {
    if (isatty(STDERR_FILENO) == 1 && shown_ >= 0) write_message("\r     \r");
  }

 private:
  int64_t shown_ = -1;
};

void evaluate_sets(const EvaluateArguments& arguments, const InferenceRanks& ranks) {
  RankMessages& messages = *ranks.messages;
  const Inference inference = open_inference(arguments.inference, ranks);
  // Rank 0 first: it makes the token files of texts that the others then find.
  const std::vector<Set> sets = messages.first_then_others([&] { return sets_of(arguments, inference); });
  EngineOptions options = inference.engine_options();
  constexpr int64_t usual_length = 1024;
  options.sequence_length = arguments.sequence > 0 ? arguments.sequence
                            : inference.run        ? inference.trained_length
                                            : std::min(usual_length, inference.model.maximum_positions);
  if (options.sequence_length > inference.model.maximum_positions) {
    throw_user_error(fmt::format("--sequence {}: the model has {} positions", options.sequence_length,
                                 inference.model.maximum_positions),
                     fmt::format("give --sequence {} or less", inference.model.maximum_positions));
  }
  if (arguments.stride > options.sequence_length) {
    throw_user_error(
        fmt::format("--stride {}: a window has {} tokens", arguments.stride, options.sequence_length),
        "a window moves on by no more than its length, or tokens would be left out");
  }
  options.validation_micro_batch = arguments.batch;
  if (arguments.shard_weights) {
    if (ranks.groups() == 1) {
      throw_user_error("--shard-weights: there is one rank with windows of its own, which needs all weights",
                       "give more --ranks, or fewer to --tensor");
    }
    options.compile.zero_stage = 3;
  }
  const auto engine = load_engine(inference, options, ranks);
  for (const Set& set : sets) {
    EvaluateOptions evaluation{
        .stride = arguments.stride, .range = set.range, .max_tokens = arguments.tokens};
    if (inference.run) {
      evaluation.reset_positions = inference.run->data.reset_positions || set.packed;
      evaluation.mask_documents = inference.run->data.mask_documents || set.packed;
    }
    Progress progress;
    const Scores scores =
        evaluate(*engine, *set.tokens, evaluation, inference.tokenizer.get(),
                 messages.is_first() ? std::function<bool(int64_t, int64_t)>(std::ref(progress)) : nullptr);
    progress.clear();
    if (scores.tokens == 0) {
      throw_user_error(
          fmt::format("no token of {} is marked as learned: there is nothing to score", set.name),
          "give data with text, or with answers, that the model is to predict");
    }
    if (messages.is_first())
      write_output(arguments.json ? json_line(set.name, scores) : text_line(set.name, scores));
  }
}

}  // namespace

void evaluate_command(const EvaluateArguments& arguments) {
  const ClosedPipesIgnored pipes;
  const std::optional<InferenceRanks> ranks = join_inference(arguments.inference);
  if (ranks) ranks->messages->abort_with_error([&] { evaluate_sets(arguments, *ranks); });
}

}  // namespace athanor
