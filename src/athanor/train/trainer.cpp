#include "athanor/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/data/loader.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "athanor/train/data_sets.h"
#include "athanor/train/dump.h"
#include "athanor/train/initialise_from.h"
#include "athanor/train/interrupt.h"
#include "athanor/train/loss_scale.h"
#include "athanor/train/peak.h"
#include "athanor/train/rank_agreement.h"
#include "athanor/train/rank_layout.h"
#include "athanor/train/replica_check.h"
#include "athanor/train/report_tables.h"
#include "athanor/train/run_reports.h"
#include "athanor/train/run_sample.h"
#include "athanor/train/run_state.h"
#include "athanor/train/schedule.h"
#include "athanor/train/spike.h"
#include "athanor/train/validation_pass.h"

namespace athanor {

namespace {

EngineOptions engine_options(const RunOptions& options, bool validates, Communicator* communicator) {
  EngineOptions engine;
  engine.communicator = communicator;
  engine.model = options.model;
  engine.compile = options.compile;
  engine.kernels = options.kernels;
  engine.threads = options.threads;
  engine.seed = options.seed;
  engine.micro_batch = options.micro_batch;
  engine.sequence_length = padded_sequence(options.compile.layout, options.data.sequence_length);
  engine.micro_batch_counts = micro_batch_counts(options.batch, options.samples_at_once());
  engine.validation_micro_batch = validates ? options.micro_batch : 0;
  // Many ranks have their sample written by one engine that holds everything.
  if (options.sample.length > 0 && communicator == nullptr) engine.generation = sample_shape(options);
  return engine;
}

// Rank 0 first: it makes the token files of texts that the others then find.
DataSets open_in_turn(const RunOptions& options, FileEnvironment& files, int64_t total_samples,
                      RankMessages& messages) {
  messages.set_phase("preparing data");
  DataSets sets = messages.first_then_others([&] { return open_data_sets(files, options, total_samples); });
  require_same(messages, "training data", to_text(sets.train->position(0)));
  return sets;
}

bool has_validation(const RunOptions& options) {
  return options.data.validation_fraction > 0 || !options.data.validation.empty();
}

class Run {
 public:
  Run(const RunOptions& options, const TrainContext& context)
      : options_(options),
        context_(context),
        messages_(context.communicator),
        part_(batch_part(options.model, options.compile.layout, messages_.rank(), options.micro_batch,
                         options.data.sequence_length)),
        total_samples_(samples_after(options.batch, options.samples_at_once(), options.steps)),
        data_(open_in_turn(options, context.files, total_samples_, messages_)),
        engine_(engine_options(options, has_validation(options), context.communicator)),
        reports_(options, engine_.programs(), messages_.ranks()),
        spikes_(options.spike),
        scaler_(options.loss_scale, options.compile.precision == Precision::fp16),
        checkpoints_(context.files, options.run_folder() + "/checkpoints", {options.checkpoint.keep}) {
    validate_dump_names(engine_.programs(), options.dump.names);
    if (!options.dump.names.empty() && options.dump.step > options.steps) {
      throw_user_error(
          fmt::format("debug.dump_step {} is behind the last step, {}", options.dump.step, options.steps),
          "lower debug.dump_step, or raise train.steps");
    }
  }

  TrainOutcome go() {
    try {
      return run();
    } catch (const Error& error) {
      const Error told = with_step_of_weights(error);
      reports_.failed(told.what());
      throw told;
    } catch (const std::exception& error) {
      reports_.failed(error.what());
      throw;
    }
  }

 private:
  TrainOutcome run() {
    std::optional<Interrupts> interrupts;
    if (context_.signals) interrupts.emplace(options_.wall_time_seconds, created_ns_);
    interrupts_ = interrupts ? &*interrupts : nullptr;
    require_same(messages_, "options", context_.configuration);
    describe();
    engine_.allocate();
    messages_.set_phase("reading the weights");
    restore_or_initialise();
    messages_.set_phase("beginning");
    if (messages_.is_first()) {
      open_folder();
      reports_.open_sinks(context_.files, progress_.step);
      find_peak();
    }
    const TrainOutcome outcome = loop();
    finish(outcome);
    interrupts_ = nullptr;
    return outcome;
  }

  // What ranks that outlive others have in memory may be one step apart.
  Error with_step_of_weights(const Error& error) const {
    if (messages_.ranks() == 1 || !trains_ || error.kind() != ErrorKind::restart_worker) return error;
    const int64_t step = progress_.step + (in_step_ && engine_.committed() ? 1 : 0);
    return {error.kind(), error.message(),
            fmt::format("{}{}this rank has the weights of step {}", error.hint(),
                        error.hint().empty() ? "" : "; ", step)};
  }

  // Rank 0 speaks for all.
  Terminal& terminal() { return messages_.is_first() ? context_.terminal : silent_; }
  void note(const std::string& text) { tell(MessageKind::note, text); }
  void tell(MessageKind kind, const std::string& text) {
    if (messages_.is_first()) reports_.message(kind, text, context_.terminal);
  }

  void find_peak() {
    const MatrixPeak peak = context_.peak ? *context_.peak : measure_peak(options_, engine_.threads());
    if (peak.gflops <= 0) return;
    const int ranks = messages_.ranks();
    note(fmt::format("peak: {:.0f} GFLOP/s, {}{}", peak.gflops, peak.source,
                     ranks > 1 ? fmt::format("; {} ranks", ranks) : ""));
    reports_.set_peak(peak);
  }

  void describe() {
    for (const std::string& line : engine_.programs().notes) note(line);
    for (const std::string& line : data_.report) note(line);
    terminal().print(parameter_table(engine_.programs(), options_.model));
    note(memory_summary(engine_.programs()));
  }

  void open_folder() {
    context_.files.make_directories(options_.run_folder());
    lock_folder();
    write_file_atomically(context_.files, options_.run_folder() + "/config.toml", context_.configuration);
    if (data_.tokenizer) {
      tokenizer_json_ = write_tokenizer_json(data_.tokenizer->definition());
      write_file_atomically(context_.files, options_.run_folder() + "/tokenizer.json", tokenizer_json_);
    }
    note(fmt::format("run folder: {}", options_.run_folder()));
  }

  // Before anything in it is read or written that another process might be changing.
  void lock_folder() {
    if (context_.lock && !lock_ && messages_.is_first()) lock_ = context_.lock(options_.run_folder());
  }

  void restore_or_initialise() {
    engine_.initialise();
    progress_.total_samples = total_samples_;
    if (!options_.resume) {
      checkpoints_.refuse_later_than(0);
      begin_elsewhere();
      return;
    }
    lock_folder();
    LatestCheckpoint latest = find_latest(checkpoints_, context_.files, messages_);
    for (const std::string& line : latest.notes) note(line);
    if (!latest.checkpoint) {
      note("no checkpoint to resume from: starting at step 0");
      begin_elsewhere();
      note_plan();
      return;
    }
    const SavedRun peek = read_run(*latest.checkpoint);
    if (context_.check_resume) {
      for (const std::string& line : context_.check_resume(peek.configuration)) note(line);
    }
    data_.train = std::make_shared<const SampleMix>(
        data_.train->resumed(peek.position, options_.data.change));  // refuses other data
    const int64_t consumed = peek.position.consumed_samples;
    note_plan();
    refuse_other_rates(peek.progress);
    const SavedRun saved = load_run(*latest.checkpoint, engine_);
    progress_ = saved.progress;
    progress_.consumed_samples = consumed;
    progress_.total_samples = total_samples_;
    spikes_.restore(saved.spikes);
    if (scaler_.dynamic() && !saved.loss_scale.empty()) scaler_.restore(saved.loss_scale);
    saved_step_ = progress_.step;
    note(fmt::format("resumed from {} at step {}", latest.checkpoint->path(), progress_.step));
    if (!options_.dump.names.empty() && options_.dump.step <= progress_.step)
      note(fmt::format("debug.dump: step {} is past, nothing will be dumped", options_.dump.step));
  }

  void begin_elsewhere() {
    if (options_.init_from.empty()) return;
    ATHANOR_ASSERT(context_.initial_weights);
    const InitialWeights initial = context_.initial_weights();
    for (const std::string& line : initial.notes) note(line);
    if (options_.init_optimizer && initial.updates == 0) {
      throw_user_error(
          fmt::format("train.init_optimizer: '{}' has no optimizer state", initial.reader->path()),
          "only checkpoints of runs have it; without train.init_optimizer the state begins fresh");
    }
    if (initial.tokenizer && data_.tokenizer && data_.tokenizer->identity() != *initial.tokenizer) {
      tell(MessageKind::warning,
           fmt::format("the data's tokenizer is not that of the weights in {}: the same ids mean other texts",
                       initial.reader->path()));
    }
    initialise_from(engine_, *initial.reader, options_.init_optimizer);
    if (options_.init_optimizer) progress_.earlier_updates = initial.updates;
    note(fmt::format(
        "weights from {}, optimizer state {}", initial.reader->path(),
        options_.init_optimizer ? fmt::format("after {} updates too", initial.updates) : "fresh"));
  }

  // Updates that the optimizer's state has seen.
  int64_t updates() const { return progress_.earlier_updates + progress_.optimizer_step; }

  void note_plan() {
    for (const std::string& line : plan_training(*data_.train, options_.data, total_samples_)) note(line);
  }

  // A run may become longer only where the steps behind it would have had the same rates: before its decay.
  void refuse_other_rates(const RunProgress& saved) const {
    if (saved.step == 0 || saved.total_samples == total_samples_) return;
    const auto last_rate = [&](int64_t total) {
      return learning_rate(options_.schedule, saved.consumed_samples - 1, 1, total);
    };
    if (last_rate(saved.total_samples) == last_rate(total_samples_)) return;
    throw_user_error(
        fmt::format(
            "train.steps: the saved run is {} samples long and this one {}, and its learning rate has "
            "begun to fall to the end of the former",
            saved.total_samples, total_samples_),
        "keep train.steps, or go on from a checkpoint before the decay");
  }

  TrainOutcome loop() {
    Loader loader(
        std::make_shared<const PartReader>(data_.train, part_), {part_.samples, options_.data.prefetch},
        [this](int64_t consumed) { return batch_size(options_.batch, part_.samples, consumed); },
        progress_.consumed_samples);
    TrainOutcome outcome;
    trains_ = true;
    reports_.begin(progress_.step);
    first_step_ = progress_.step;
    for (;;) {
      const Requests requests = agree(messages_, own_requests());
      // A save that was asked for before the last step is made by finish().
      if (requests.save && progress_.step > first_step_) save();
      outcome.stop_reason = progress_.step < options_.steps ? requests.stop_reason : "";
      if (!outcome.stop_reason.empty() || progress_.step == options_.steps) break;
      messages_.set_phase(fmt::format("step {}", progress_.step + 1));
      one_step(loader.next());
      if (const int64_t every = options_.communication.check_every; every > 0 && progress_.step % every == 0)
        check_replicas(messages_, engine_.state(), progress_.step);
      if (due(options_.validation.every)) validate();
      if (due(options_.checkpoint.every)) save();
    }
    outcome.step = progress_.step;
    return outcome;
  }

  Requests own_requests() const {
    if (interrupts_ == nullptr) return {};
    return {interrupts_->stop_reason(), interrupts_->take_save_request()};
  }

  bool due(int64_t every) const {
    return every > 0 && progress_.step % every == 0 && progress_.step < options_.steps;
  }

  void one_step(const StepBatch& batch) {
    const double rate =
        learning_rate(options_.schedule, progress_.consumed_samples, batch.samples, total_samples_);
    SkipLimits limits;
    if (options_.spike.policy == SpikePolicy::skip) limits = {spikes_.loss_limit(), spikes_.norm_limit()};
    const bool dumps = !options_.dump.names.empty() && progress_.step + 1 == options_.dump.step;
    const double scale = scaler_.scale();
    engine_.set_loss_scale(scale);
    const int64_t begin = monotonic_ns();
    in_step_ = true;
    const StepResult result =
        dumps ? dump_step(batch, rate, limits)
              : engine_.train_step(batch.micro_batches, progress_.step, updates(), rate, limits);
    in_step_ = false;
    const double seconds = seconds_of(monotonic_ns() - begin);
    const bool overflow = scaler_.overflowed(result.loss, result.gradient_norm);
    if (!overflow || scaler_.at_minimum()) refuse_non_finite(batch, result, rate);
    if (result.valid_tokens > 0) scaler_.update(overflow);
    const bool judged = result.valid_tokens > 0 && !overflow;
    const std::string spike = judged ? spikes_.judge(result.loss, result.gradient_norm) : "";
    std::string event = spike;
    if (result.valid_tokens == 0) event = "no valid tokens";
    if (overflow) event = fmt::format("gradient overflow, loss scale {:g} to {:g}", scale, scaler_.scale());
    ++progress_.step;
    if (!result.skipped) ++progress_.optimizer_step;
    progress_.consumed_samples = batch.consumed_after();
    progress_.consumed_tokens += batch.samples * options_.data.sequence_length;
    reports_.step(progress_, result, batch, {rate, scale, seconds, std::move(event)}, terminal());
    if (!spike.empty() && options_.spike.policy == SpikePolicy::stop) {
      stop_for(spike, "raise spike.z_score or set spike.policy to warn or skip to go on");
    }
    if (spikes_.in_a_row() > SpikeDetector::most_in_a_row && options_.spike.policy == SpikePolicy::skip) {
      stop_for(fmt::format("{}; so were the {} steps before, and all were skipped", spike,
                           SpikeDetector::most_in_a_row),
               "this is no spike but another level: look at the data, or set spike.policy to warn to go on");
    }
  }

  [[noreturn]] void stop_for(const std::string& reason, const std::string& hint) {
    save();
    reports_.finish();
    terminal().finish();
    throw_on_all(messages_, Error(ErrorKind::stop_job, fmt::format("step {}: {}", progress_.step, reason),
                                  "the run was saved; " + hint));
  }

  StepResult dump_step(const StepBatch& batch, double rate, const SkipLimits& limits) {
    TensorDump dump(options_.dump.names);
    const StepProgram& program = engine_.train_program(batch.micro_batches.size());
    const StepResult result = engine_.observed_step(
        batch.micro_batches, progress_.step, updates(), rate,
        [&](const Observation& seen) { dump.observe(program, seen); }, limits);
    const std::string folder = options_.run_folder() + "/dump";
    context_.files.make_directories(folder);
    const std::string rank = messages_.ranks() > 1 ? fmt::format(".rank_{}", messages_.rank()) : "";
    const std::string path = fmt::format("{}/step_{}{}.safetensors", folder, progress_.step + 1, rank);
    const int64_t count = dump.write(context_.files, path);
    note(fmt::format("dumped {} tensor{} to {}", count, plural(count), path));
    return result;
  }

  // The step was not committed, so it can be replayed as it was to find where the first bad value arose.
  void refuse_non_finite(const StepBatch& batch, const StepResult& result, double rate) {
    if (result.valid_tokens == 0 || (std::isfinite(result.loss) && std::isfinite(result.gradient_norm)))
      return;
    const int64_t step = progress_.step + 1;
    const std::string first = agree_on_non_finite(
        messages_, engine_.locate_non_finite(batch.micro_batches, progress_.step, updates(), rate));
    const std::string where = first.empty() ? "no single tensor holds it: a sum overflowed" : first;
    reports_.finish();
    terminal().finish();
    throw_on_all(
        messages_,
        Error(ErrorKind::stop_job,
              fmt::format("step {}: the loss is {} and the gradient norm {}; {}{}", step,
                          format_short(result.loss), format_short(result.gradient_norm), where,
                          scale_note(result)),
              saved_step_ > 0
                  ? fmt::format("nothing of this step was written; the last checkpoint is that of step {}",
                                saved_step_)
                  : "nothing of this step was written; try a lower learning rate or a longer warm-up"));
  }

  std::string scale_note(const StepResult& result) const {
    if (!scaler_.overflowed(result.loss, result.gradient_norm)) return "";
    return fmt::format("; the loss scale is at its minimum of {:g}, loss_scale.minimum", scaler_.scale());
  }

  void validate() {
    messages_.set_phase(fmt::format("validating after step {}", progress_.step));
    const bool averaged = options_.validation.use_average && options_.compile.optimizer.average_decay > 0;
    if (!averaged) return validate_weights();
    engine_.with_average([this] { validate_weights(); });
  }

  // Given up when the run is asked to end: what matters then is the save.
  void validate_weights() {
    bool ended = false;
    for (const ValidationSet& set : data_.validation) {
      const auto report = validation_pass(engine_, set, part_, options_.validation.samples, progress_.step,
                                          [this] { return asked_to_end(); });
      ended = !report;
      if (ended) break;
      reports_.validation(*report, terminal());
    }
    if (ended) note("the validation was given up, to end in time");
  }

  bool stop_asked() const { return interrupts_ != nullptr && !interrupts_->stop_reason().empty(); }
  bool asked_to_end() { return messages_.any(stop_asked()); }  // any rank

  void save() {
    if (progress_.step == saved_step_) return;
    messages_.set_phase(fmt::format("saving step {}", progress_.step));
    reports_.finish();  // a run that goes on from here finds the lines of all steps before
    const SaveReport saved =
        save_run(checkpoints_, engine_,
                 {progress_, data_.train->position(progress_.consumed_samples), context_.configuration,
                  spikes_.to_text(), tokenizer_json_, scaler_.dynamic() ? scaler_.to_text() : ""},
                 messages_);
    saved_step_ = progress_.step;
    for (const std::string& line : saved.notes) note(line);
    note(fmt::format("saved {} ({})", saved.path, format_bytes(static_cast<double>(saved.bytes))));
  }

  void finish(const TrainOutcome& outcome) {
    if (outcome.stop_reason.empty()) validate();
    if (progress_.step > 0) save();
    reports_.finish();
    terminal().finish();
    note_skipped();
    if (!outcome.stop_reason.empty()) {
      note(fmt::format("{} at step {} of {}; `--resume {}` goes on", outcome.stop_reason, progress_.step,
                       options_.steps, options_.run_folder()));
      return;
    }
    if (const std::string chart = reports_.chart(); !chart.empty()) terminal().print(chart);
    if (options_.sample.length > 0) sample();
  }

  void note_skipped() {
    const int64_t skipped = progress_.step - progress_.optimizer_step;
    if (skipped > 0) note(fmt::format("{} of {} steps were skipped", skipped, progress_.step));
  }

  void sample() {
    if (!data_.tokenizer || !messages_.is_first()) return;  // no text to show ids as
    const bool averaged = options_.compile.optimizer.average_decay > 0;
    if (messages_.ranks() == 1) {
      if (!averaged) return print_sample(engine_);
      return engine_.with_average([this] { print_sample(engine_); });
    }
    try {
      const std::string path = checkpoints_.path_of(saved_step_);
      print_sample(
          *reread_whole(options_, Checkpoint::open_checked_elsewhere(context_.files, path), averaged));
    } catch (const Error& error) {
      note(fmt::format("no sample: {}", error.message()));
    }
  }

  void print_sample(Engine& engine) {
    const std::string text =
        write_sample(engine, *data_.tokenizer, options_, [this] { return stop_asked(); });
    terminal().print("the model writes:\n" + printable_lines(text) + "\n");
  }

  const RunOptions& options_;
  const TrainContext& context_;
  RankMessages messages_;
  BatchPart part_;
  Terminal silent_{{}, [](std::string_view) {}, [] { return 80; }, monotonic_clock()};
  std::shared_ptr<const FolderLock> lock_;  // given back last
  const int64_t created_ns_ = monotonic_ns();
  int64_t total_samples_;
  DataSets data_;
  std::string tokenizer_json_;
  Engine engine_;
  RunReports reports_;
  SpikeDetector spikes_;
  LossScaler scaler_;
  CheckpointFolder checkpoints_;
  RunProgress progress_;
  const Interrupts* interrupts_ = nullptr;  // while the run is on
  int64_t saved_step_ = -1, first_step_ = 0;
  bool trains_ = false, in_step_ = false;
};

}  // namespace

TrainOutcome train(const RunOptions& options, const TrainContext& context) {
  if (options.steps < 1)
    throw_user_error(fmt::format("train.steps is {}", options.steps), "it must be at least 1");
  if (options.micro_batch < 1) {
    throw_user_error(fmt::format("train.micro_batch is {}", options.micro_batch), "it must be at least 1");
  }
  validate_batch(options.batch, options.micro_batch, options.mesh());
  Communicator* const communicator = context.communicator;
  require_ranks(options.mesh(), communicator == nullptr ? 1 : communicator->ranks());
  std::optional<ClosedPipesIgnored> pipes;
  if (context.signals) pipes.emplace();
  try {
    return Run(options, context).go();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    if (communicator != nullptr) communicator->abort(known != nullptr ? known->message() : error.what());
    throw;
  }
}

}  // namespace athanor
