#include "athanor/cli/run_options.h"

#include <fmt/core.h>

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/cli/mesh_options.h"
#include "athanor/cli/model_options.h"
#include "athanor/cli/option_value.h"
#include "athanor/cli/training_options.h"

namespace athanor {
namespace {

void add_run_rows(OptionTable& table, RunOptions& run) {
  table.describe_group("run", "The run as a whole: where it is kept, and when it ends early.");
  table.add("run.name", run.name, "Name of the run; its folder is run.folder/run.name.").may_change();
  table.add("run.folder", run.folder, "Folder that holds the folders of runs.").may_change();
  table
      .add_choice(
          "run.existing", run.existing,
          {{"number", ExistingRun::number}, {"resume", ExistingRun::resume}, {"refuse", ExistingRun::refuse}},
          "When the run's folder already holds a run: number takes the first free of NAME-2, NAME-3, "
          "...; resume goes on with the run; refuse ends with an error.")
      .may_change();
  table
      .add("run.wall_time_seconds", run.wall_time_seconds,
           "Save and end after so many seconds; 0: no limit. Resuming goes on from there.")
      .at_least(0)
      .at_most(1e9)
      .may_change();
  table
      .add("run.measure_peak", run.measure_peak,
           "Measure the machine's fastest matrix products at the start, for a second or two: MFU is against "
           "them. false: no MFU.")
      .may_change();
  table.add_choice("run.kernels", run.kernels, {{"cpu", KernelSet::cpu}, {"reference", KernelSet::reference}},
                   "Kernels to compute with: the fast ones for this CPU, or plain loops (slow, fp64 too).");
}

void add_data_rows(OptionTable& table, DataOptions& data) {
  table.describe_group("data", "What is learned from.");
  table.add(
      "data.train", data.train,
      "Training data: a text (.txt, .md), JSON lines (.jsonl), a token file, an indexed dataset of "
      "Megatron (PREFIX or either file), a token file of llm.c; a folder of such files, a pattern (a/*.txt), "
      "or several separated by commas. This or data.blend must be given.");
  table.add(
      "data.blend", data.blend,
      "Several sources instead of data.train, each WEIGHT:DATA: --set data.blend.books=0.3:books.tokens. Of "
      "any number of samples each source has its share of the weights, to within one. May change on "
      "resume with --change-data.");
  table
      .add("data.validation", data.validation,
           "Further validation sets, data of any kind each: --set data.validation.NAME=FILE.")
      .may_change();
  table
      .add("data.validation_fraction", data.validation_fraction,
           "Share of each source kept back as the validation set named \"validation\", or validation-NAME in "
           "a blend.")
      .at_least(0)
      .below(1);
  table
      .add("data.test_fraction", data.test_fraction,
           "Share of each source kept back for later, which the run does not touch.")
      .at_least(0)
      .below(1);
  table.add_choice("data.split", data.split, {{"tail", SplitKind::tail}, {"documents", SplitKind::documents}},
                   "What is kept back: the last tokens of each source, or documents drawn from all of it by "
                   "their number.");
  table.add("data.tokenizer", data.tokenizer,
            "Turns texts into tokens: bytes, a tokenizer.json, a vocab.json with merges.txt, or a folder of "
            "either. Data that names its tokenizer must name this one.");
  table.add("data.separator", data.separator,
            "Line that ends a document in a text file; empty: one document.");
  table.add("data.field", data.field, "Member of a line of JSON lines that holds its text.");
  table.add_choice(
      "data.chat_template", data.chat,
      {{"plain", ChatTemplate::plain}, {"chatml", ChatTemplate::chatml}, {"llama-3", ChatTemplate::llama3}},
      "How lines with messages, or a prompt and an answer, become text; only what the assistant says is "
      "learned.");
  table.add("data.cache", data.cache, "Folder for the token files made of text files.").may_change();
  table.add("data.sequence_length", data.sequence_length, "Tokens of a sample.").at_least(1).at_most(1 << 24);
  table.add_choice(
      "data.packing", data.packing, {{"stream", Packing::stream}, {"documents", Packing::documents}},
      "Samples are windows of the stream of all documents, or of whole documents packed together: "
      "then positions and attention follow the documents, and what is left over is padding.");
  table.add("data.reset_positions", data.reset_positions, "Count positions anew in each document.");
  table.add("data.mask_documents", data.mask_documents, "Attention does not look into other documents.");
  table
      .add("data.max_epochs", data.max_epochs,
           "Refuse a run that would read any of its sources more often; 0: any number.")
      .at_least(0)
      .at_most(1e9)
      .may_change();
  table.add("data.prefetch", data.prefetch, "Steps whose batches are prepared ahead.")
      .at_least(1)
      .at_most(1024)
      .may_change();
}

void add_output_rows(OptionTable& table, RunOptions& run) {
  table.describe_group("sample", "Text that the model writes at the end of the run.");
  table.add("sample.length", run.sample.length, "Tokens to write; 0: none.")
      .at_least(0)
      .at_most(1e9)
      .may_change();
  table.add("sample.prompt", run.sample.prompt, "Text that is continued.").may_change();
  table
      .add("sample.temperature", run.sample.temperature,
           "Divides the logits before drawing; 0: always the likeliest token.")
      .at_least(0)
      .at_most(100)
      .may_change();
  table.add("sample.top_k", run.sample.top_k, "Draw among so many likeliest tokens; 0: all.")
      .at_least(0)
      .may_change();
  table.describe_group("debug", "Looking inside.");
  table
      .add("debug.dump", run.dump.names,
           "Logical names of tensors written to the run's folder in one step, as \"block.0.mlp.up\".")
      .may_change();
  table.add("debug.dump_step", run.dump.step, "The step in which they are written; the first is 1.")
      .at_least(1)
      .may_change();
}

// A rough count from above of the bytes a step needs; in double, so that nothing overflows.
double bytes_at_most(const RunOptions& options) {
  const ModelConfig& model = options.model;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double width = number(model.width), layers = number(model.layers);
  const double attention = number(model.heads) * number(model.head_dim_or_default());
  const double feed_forward = number(model.feed_forward_or_default());
  const double parameters = layers * width * (4 * attention + 3 * feed_forward + 16) +
                            width * (2 * number(model.vocabulary) + number(model.maximum_positions));
  const double tokens = number(options.micro_batch) * number(options.data.sequence_length);
  const double saved = layers * (16 * width + 8 * attention + 8 * feed_forward);
  return 8 * (6 * parameters + tokens * (saved + 4 * number(model.vocabulary)));
}

}  // namespace

void add_run_options(OptionTable& table, RunOptions& options) {
  add_run_rows(table, options);
  add_model_rows(table, options);
  add_data_rows(table, options.data);
  add_train_rows(table, options);
  add_optimizer_rows(table, options.compile.optimizer);
  add_mesh_rows(table, options);
  add_watching_rows(table, options);
  add_loss_scale_rows(table, options.loss_scale);
  add_output_rows(table, options);
}

void validate(const RunOptions& options) {
  if (!is_plain_name(options.name)) {
    throw_user_error(fmt::format("run.name = {}: not fit for a folder", quote_toml(options.name)),
                     "use letters, digits, - and _");
  }
  validate(options.model);
  if (const double bytes = bytes_at_most(options); bytes > 1e18) {
    throw_user_error(fmt::format("a step of this model needs about {:.1e} bytes", bytes),
                     "check model.*, train.micro_batch and data.sequence_length");
  }
  validate_mesh(options);
  if (options.schedule.minimum_rate > options.schedule.rate) {
    throw_user_error(fmt::format("train.minimum_rate {} is above train.learning_rate {}",
                                 options.schedule.minimum_rate, options.schedule.rate),
                     "the rate falls from the one to the other");
  }
  if (options.init_optimizer && options.init_from.empty()) {
    throw_user_error("train.init_optimizer is true and there is no train.init_from",
                     "name the checkpoint whose optimizer state the run begins with");
  }
  const OptimizerOptions& optimizer = options.compile.optimizer;
  if (optimizer.trust_high > 0 && optimizer.trust_high < optimizer.trust_low) {
    throw_user_error(fmt::format("optimizer.trust_high {} is below optimizer.trust_low {}",
                                 optimizer.trust_high, optimizer.trust_low));
  }
  if (options.validation.use_average && optimizer.average_decay == 0) {
    throw_user_error("validation.use_average is true and there is no average",
                     "set optimizer.average_decay, 0.999 for instance");
  }
  // A program has a call for each block and micro-batch, forward and backward, and a run has a program for
  // each number of micro-batches. Bounded before the counts are listed one by one.
  const int64_t at_once = options.samples_at_once();
  const int64_t full = std::max(options.batch.batch, at_once);
  const int64_t growth =
      options.batch.ramp_from == 0 ? full : (options.batch.ramp_step > 0 ? options.batch.ramp_step : at_once);
  const int64_t largest = full / at_once;
  const int64_t programs = 1 + full / std::max<int64_t>(growth, 1);
  const double calls = static_cast<double>(programs) * static_cast<double>(largest) * 2 *
                       static_cast<double>(options.model.layers + 2);
  if (constexpr double most = 2e7; calls > most) {
    throw_user_error(
        fmt::format("a step of {} micro-batches and {} layers{} has too many parts ({:.1e}, {:.0e} at most)",
                    largest, options.model.layers,
                    options.batch.ramp_from > 0 ? fmt::format(", in {} batch sizes,", programs) : "", calls,
                    most),
        options.batch.ramp_from > 0 ? "raise train.micro_batch or train.batch_ramp_step, or lower train.batch"
                                    : "raise train.micro_batch or lower train.batch");
  }
  // The head goes over the tokens of a micro-batch in chunks, each of which the verifier looks at.
  const int64_t tokens = options.micro_batch * options.data.sequence_length;
  if (constexpr int64_t most = int64_t{1} << 26; tokens > most) {
    throw_user_error(fmt::format("a micro-batch of {} x {} tokens is {}, more than the {} that are sensible",
                                 options.micro_batch, options.data.sequence_length, tokens, most),
                     "lower train.micro_batch or data.sequence_length; train.batch sets the size of a step");
  }
  if (const int64_t chunk = options.compile.head_chunk_tokens; chunk > 0 && tokens / chunk > 1 << 16) {
    throw_user_error(
        fmt::format("train.head_chunk_tokens {} cuts the {} tokens of a micro-batch into more than {} chunks",
                    chunk, tokens, 1 << 16),
        "raise it, or leave it out: then it is chosen by size");
  }
}

}  // namespace athanor
