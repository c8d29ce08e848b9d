#include "athanor/cli/training_options.h"

namespace athanor {

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
           "ramp train.batch_ramp_step too: the samples of a step stay, sums change by rounding.")
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

}  // namespace athanor
