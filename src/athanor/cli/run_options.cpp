#include "athanor/cli/run_options.h"

#include <fmt/core.h>

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/cli/mesh_options.h"
#include "athanor/cli/option_value.h"
#include "athanor/train/schedule.h"

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

void add_model_shape_rows(OptionTable& table, ModelConfig& model) {
  table.add("model.layers", model.layers, "Number of blocks.").at_least(1).at_most(10000);
  table.add("model.width", model.width, "Features of the residual stream.").at_least(1).at_most(1 << 18);
  table.add("model.heads", model.heads, "Query heads of attention.").at_least(1).at_most(1 << 16);
  table
      .add("model.key_value_heads", model.key_value_heads,
           "Key/value heads, each shared by the same number of query heads; 0: as many as heads.")
      .at_least(0)
      .at_most(1 << 16);
  table.add("model.head_dim", model.head_dim, "Features of a head; 0: model.width / model.heads.")
      .at_least(0)
      .at_most(1 << 16);
  table
      .add("model.feed_forward", model.feed_forward,
           "Features between the two products of the feed-forward layer; 0: 4 x model.width.")
      .at_least(0)
      .at_most(1 << 21);
  table.add("model.vocabulary", model.vocabulary, "Number of token ids.").at_least(1).at_most(1 << 26);
  table
      .add("model.maximum_positions", model.maximum_positions,
           "Rows of the table of learned positions, so the longest sequence.")
      .at_least(1)
      .at_most(1 << 24);
}

void add_model_kind_rows(OptionTable& table, ModelConfig& model) {
  table.add_choice("model.norm", model.norm,
                   {{"layer_norm", NormKind::layer_norm}, {"rms_norm", NormKind::rms_norm}},
                   "Normalisation before attention, feed-forward and head.");
  table.add("model.norm_epsilon", model.norm_epsilon, "Added to the variance in norms.")
      .at_least(0)
      .at_most(1);
  table.add_choice("model.positions", model.positions,
                   {{"learned", PositionKind::learned}, {"rotary", PositionKind::rotary}},
                   "A learned table added to the embedding, or rotation of queries and keys.");
  table.add("model.rope_theta", model.rope_theta, "Base of the rotary frequencies.").above(1).at_most(1e12);
  table
      .add("model.rope_factor", model.rope_factor,
           "Llama 3.1's scaling: how much low rotary frequencies are slowed down; 1: none.")
      .at_least(1)
      .at_most(1e6);
  table
      .add("model.rope_low", model.rope_low,
           "Llama 3.1's scaling: waves with fewer turns than this in model.rope_original are slowed down "
           "fully.")
      .above(0);
  table
      .add("model.rope_high", model.rope_high,
           "Llama 3.1's scaling: waves with more turns than this in model.rope_original stay.")
      .above(0);
  table
      .add("model.rope_original", model.rope_original,
           "Llama 3.1's scaling: sequence length before the extension.")
      .at_least(1);
  table.add_choice("model.feed_forward_kind", model.feed_forward_kind,
                   {{"gelu", FeedForwardKind::gelu}, {"swiglu", FeedForwardKind::swiglu}},
                   "Activation: GELU (tanh form), or SwiGLU with a gate beside the first product.");
  table.add("model.bias", model.bias, "Biases in products and layer norms.");
  table.add("model.tied_head", model.tied_head, "The head multiplies with the token embedding.");
  table.add("model.query_key_norm", model.query_key_norm, "Norms over each head's queries and keys.");
  table.add("model.parallel_block", model.parallel_block,
            "Attention and feed-forward side by side: y = x + attention(norm(x)) + feed_forward(norm(x)).");
  table
      .add("model.window", model.window,
           "Sliding-window attention: how many of the latest tokens a token sees, itself included; 0: all.")
      .at_least(0);
  table
      .add("model.window_pattern", model.window_pattern,
           "Windows of layers in turn, repeated over the layers; empty: model.window in every layer.")
      .at_least(0);
}

void add_model_rows(OptionTable& table, RunOptions& run) {
  ModelConfig& model = run.model;
  table.describe_group("model",
                       "The model. A family sets the defaults, a base file of configs/models lies over "
                       "them, options given by hand over both.");
  table.add_choice("model.family", model.family, {{"gpt2", std::string("gpt2")}, {"llama", "llama"}},
                   "Family: sets the defaults of norm, positions, feed_forward_kind, bias and tied_head, and "
                   "the names of parameters in other formats.");
  table.set_leading_option("model.family", [&model] { model = family_defaults(model.family); });
  table.add("model.base", run.model_base,
            "Model file to begin with: NAME for configs/models/NAME.toml, or the path of a file.");
  add_model_shape_rows(table, model);
  add_model_kind_rows(table, model);
  table.set_base_option("model.base", "model");
  table
      .add("model.dropout", model.dropout,
           "Probability of dropping an element of embedding, attention weights and residual branches.")
      .at_least(0)
      .below(1);
  table
      .add("model.label_smoothing", model.label_smoothing,
           "Share of the label's probability spread over the vocabulary.")
      .at_least(0)
      .below(1);
  table.add("model.z_loss", model.z_loss, "Weight of the squared log of the softmax's sum in the loss.")
      .at_least(0)
      .at_most(1e6);
  table
      .add("model.logit_soft_cap", model.logit_soft_cap,
           "Logits pass through cap x tanh(logit / cap); 0: as they are.")
      .at_least(0)
      .at_most(1e6);
  table
      .add("model.initial_deviation", model.initial_deviation,
           "Standard deviation of the initial weights; projections into the residual stream are divided by "
           "sqrt(2 x layers).")
      .at_least(0)
      .at_most(100);
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
           "a "
           "blend.")
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

void add_train_rows(OptionTable& table, RunOptions& run) {
  table.describe_group("train",
                       "The training loop. Warm-up, decay and ramp are counted in samples, so they do not "
                       "depend on the batch size.");
  table
      .add("train.steps", run.steps,
           "Optimizer steps in all. May change on resume where earlier rates do not depend on it: with "
           "train.schedule constant or warmup_stable_decay.")
      .at_least(1)
      .at_most(1e12);
  table
      .add("train.micro_batch", run.micro_batch,
           "Samples that a rank computes at once. May change on resume where train.batch is set, and with a "
           "ramp "
           "train.batch_ramp_step too: the samples of a step stay, sums change by rounding.")
      .at_least(1)
      .at_most(1 << 20);
  table
      .add("train.batch", run.batch.batch,
           "Samples of an optimizer step, over all ranks: a multiple of mesh.replica x mesh.shard x "
           "train.micro_batch; 0: so many.")
      .at_least(0)
      .at_most(1 << 30);
  table
      .add("train.batch_ramp_from", run.batch.ramp_from,
           "Samples of the first step, where the batch grows; 0: no ramp.")
      .at_least(0)
      .at_most(1 << 30);
  table
      .add("train.batch_ramp_step", run.batch.ramp_step,
           "Growth of the batch at a time; 0: one micro-batch of each rank.")
      .at_least(0)
      .at_most(1 << 30);
  table
      .add("train.batch_ramp_samples", run.batch.ramp_samples,
           "Consumed samples at which the batch has reached train.batch.")
      .at_least(0)
      .at_most(1e15);
  table.add("train.learning_rate", run.schedule.rate, "Peak learning rate.").at_least(0).at_most(1000);
  table.add_choice("train.schedule", run.schedule.kind,
                   {{"constant", ScheduleKind::constant},
                    {"linear", ScheduleKind::linear},
                    {"cosine", ScheduleKind::cosine},
                    {"warmup_stable_decay", ScheduleKind::warmup_stable_decay}},
                   "Course of the learning rate after the warm-up.");
  table.add("train.minimum_rate", run.schedule.minimum_rate, "Learning rate at the end of a decay.")
      .at_least(0)
      .at_most(1000);
  table
      .add("train.warmup_samples", run.schedule.warmup_samples,
           "Consumed samples over which the learning rate rises from zero.")
      .at_least(0)
      .at_most(1e15);
  table
      .add("train.decay_samples", run.schedule.decay_samples,
           "With warmup_stable_decay: the last samples, over which the rate falls linearly.")
      .at_least(0)
      .at_most(1e15);
  table.add_choice(
      "train.precision", run.compile.precision,
      {{"fp64", Precision::fp64},
       {"fp32", Precision::fp32},
       {"bf16", Precision::bf16},
       {"fp16", Precision::fp16}},
      "Type of compute and working weights. Master weights, gradients, statistics and sums are fp32 "
      "with 16-bit compute.");
  table.add_choice("train.residual", run.compile.residual,
                   {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}},
                   "Type of the residual stream with 16-bit compute.");
  table
      .add_choice("train.recompute", run.compile.recompute,
                  {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}},
                  "What backward computes again to save memory: nothing; norms, activations, dropout and "
                  "rotary; or whole blocks. Changes no bit of the result.")
      .may_change();
  table
      .add("train.head_chunk_tokens", run.compile.head_chunk_tokens,
           "Tokens whose logits exist at once; 0: chosen by size.")
      .at_least(0)
      .at_most(1 << 30);
  table.add("train.threads", run.threads, "Compute threads; 0: all cores. Changes no bit of the result.")
      .at_least(0)
      .at_most(4096)
      .may_change();
  table.add(
      "train.init_from", run.init_from,
      "Begin with the weights of a run, a checkpoint, an imported folder or a folder in Hugging Face's form "
      "instead of random ones. model.* that is not given is that of those weights.");
  table.add(
      "train.init_optimizer", run.init_optimizer,
      "With train.init_from: begin with the optimizer's state of that checkpoint too, not a fresh one.");
  table.add("train.seed", run.seed, "Decides initial weights, order of the data and dropout.");
}

void add_optimizer_rows(OptionTable& table, OptimizerOptions& optimizer) {
  table.describe_group(
      "optimizer", "The update. Decay and rate factors go by a parameter's declared role, never its shape.");
  table.add_choice(
      "optimizer.kind", optimizer.kind,
      {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}, {"lamb", OptimizerKind::lamb}},
      "AdamW, SGD with momentum, or LAMB.");
  table.add("optimizer.beta1", optimizer.beta1, "AdamW, LAMB: decay of the gradient's mean.")
      .at_least(0)
      .below(1);
  table.add("optimizer.beta2", optimizer.beta2, "AdamW, LAMB: decay of the squared gradient's mean.")
      .at_least(0)
      .below(1);
  table.add("optimizer.epsilon", optimizer.epsilon, "AdamW, LAMB: added to the root of the second moment.")
      .above(0)
      .at_most(1);
  table.add("optimizer.momentum", optimizer.momentum, "SGD: decay of the momentum.").at_least(0).below(1);
  table.add("optimizer.nesterov", optimizer.nesterov, "SGD: look ahead along the momentum.");
  table.add("optimizer.trust_low", optimizer.trust_low, "LAMB: smallest trust ratio; 0: no bound.")
      .at_least(0)
      .at_most(1e6);
  table.add("optimizer.trust_high", optimizer.trust_high, "LAMB: largest trust ratio; 0: no bound.")
      .at_least(0)
      .at_most(1e6);
  table
      .add("optimizer.maximum_norm", optimizer.maximum_norm,
           "Gradients are scaled down to this global norm; 0: never.")
      .at_least(0);
  table
      .add("optimizer.average_decay", optimizer.average_decay,
           "Decay of an exponential average of the weights, kept beside them; 0: none.")
      .at_least(0)
      .below(1);
  table
      .add("optimizer.weight_decay", optimizer.weight_decay,
           "Decoupled weight decay of matrices, and of the roles switched on below.")
      .at_least(0)
      .at_most(1e6);
  table.add("optimizer.decay_embeddings", optimizer.decay_embeddings, "Decay embeddings.");
  table.add("optimizer.decay_norms", optimizer.decay_norms, "Decay weights of norms.");
  table.add("optimizer.decay_biases", optimizer.decay_biases, "Decay biases.");
  table.add("optimizer.matrix_rate", optimizer.matrix_rate, "Factor of the learning rate for matrices.")
      .at_least(0)
      .at_most(1e6);
  table.add("optimizer.embedding_rate", optimizer.embedding_rate, "Factor for embeddings.")
      .at_least(0)
      .at_most(1e6);
  table.add("optimizer.norm_rate", optimizer.norm_rate, "Factor for weights of norms.")
      .at_least(0)
      .at_most(1e6);
  table.add("optimizer.bias_rate", optimizer.bias_rate, "Factor for biases.").at_least(0).at_most(1e6);
}

void add_watching_rows(OptionTable& table, RunOptions& run) {
  table.describe_group("validation", "Judging the model on data it does not learn from.");
  table.add("validation.every", run.validation.every, "Steps between validations; 0: only at the end.")
      .at_least(0)
      .may_change();
  table
      .add("validation.samples", run.validation.samples,
           "Samples of each set that are judged, from its beginning; 0: all.")
      .at_least(0)
      .may_change();
  table
      .add("validation.use_average", run.validation.use_average,
           "Judge the averaged weights, where optimizer.average_decay keeps them.")
      .may_change();
  table.describe_group("checkpoint", "Saving the run. It is always saved at the end.");
  table.add("checkpoint.every", run.checkpoint.every, "Steps between checkpoints; 0: only at the end.")
      .at_least(0)
      .may_change();
  table.add("checkpoint.keep", run.checkpoint.keep, "Latest checkpoints that are kept.")
      .at_least(1)
      .at_most(1e6)
      .may_change();
  table.describe_group("spike", "Steps whose loss or gradient norm is far above those before.");
  table
      .add_choice(
          "spike.policy", run.spike.policy,
          {{"off", SpikePolicy::off},
           {"warn", SpikePolicy::warn},
           {"skip", SpikePolicy::skip},
           {"stop", SpikePolicy::stop}},
          "What to do about a spike: nothing, a warning, leave the weights as they are, or end the run.")
      .may_change();
  table
      .add("spike.z_score", run.spike.z_score,
           "A spike is so many standard deviations above the mean of the window.")
      .above(0)
      .may_change();
  table.add("spike.window", run.spike.window, "Steps that mean and deviation look back over.")
      .at_least(10)
      .at_most(1e6);
}

void add_loss_scale_rows(OptionTable& table, LossScaleOptions& scale) {
  table.describe_group("loss_scale",
                       "Dynamic loss scaling with train.precision = fp16: a step whose gradient overflows is "
                       "skipped and the scale lowered.");
  table.add("loss_scale.initial", scale.initial, "What the loss gradient is multiplied by to begin with.")
      .above(0)
      .at_most(1e15);
  table
      .add("loss_scale.growth_interval", scale.growth_interval,
           "Steps in a row without overflow after which the scale grows.")
      .at_least(1)
      .at_most(1e9)
      .may_change();
  table.add("loss_scale.growth_factor", scale.growth_factor, "By how much it grows then; 1: never.")
      .at_least(1)
      .at_most(1e15)
      .may_change();
  table.add("loss_scale.backoff_factor", scale.backoff_factor, "What an overflow multiplies the scale by.")
      .above(0)
      .below(1)
      .may_change();
  table
      .add("loss_scale.minimum", scale.minimum,
           "The scale goes no lower; the run ends when the gradient overflows even so.")
      .above(0)
      .at_most(1e15)
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
}

}  // namespace athanor
