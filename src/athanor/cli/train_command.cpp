#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "athanor/base/error.h"
#include "athanor/base/folder_lock.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/rank_job.h"
#include "athanor/cli/run_folder.h"
#include "athanor/cli/run_options.h"
#include "athanor/observe/terminal.h"
#include "athanor/train/trainer.h"

namespace athanor {
namespace {

void load(RunConfiguration& run, FileEnvironment& files, const ConfigurationArguments& arguments) {
  load_run_options(run, files, arguments.file, arguments.settings);
}

// A run is resumed with the options it was saved with, and the settings on top. A configuration file, if one
// is given, stands in for the saved options, and is compared with them like everything else.
void load_resumed(RunConfiguration& run, FileEnvironment& files, const std::string& folder,
                  const ConfigurationArguments& arguments) {
  require_run(files, folder);
  if (!arguments.file.empty()) {
    load(run, files, arguments);
  } else {
    apply_toml(run.table, configuration_of(files, folder), join_path(folder, configuration_file));
    for (const std::string& setting : arguments.settings) {
      if (split_setting(setting).first == run.table.base_option()) {
        throw_user_error(fmt::format("--set {}: a resumed run keeps its model", run.table.base_option()),
                         "start a new run for another model");
      }
      run.table.apply_setting(setting);
    }
  }
  if (const auto& data = run.options.data; data.train.empty() && data.blend.empty()) {
    throw_user_error(
        fmt::format("{} holds no run that could go on: no data is set", folder),
        fmt::format("is it an imported model? A run begins with one by --set train.init_from={}", folder));
  }
  // Where its tokenizer came from may be gone; the run has a copy.
  const std::string kept = join_path(folder, "tokenizer.json");
  std::string& tokenizer = run.options.data.tokenizer;
  if (tokenizer != "bytes" && !files.exists(tokenizer) && files.exists(kept)) {
    tokenizer = kept;
    run.table.at("data.tokenizer").may_change();
  }
  set_run_folder(run.options, folder);
  run.options.resume = true;
}

// The rates of the steps taken so far must be those of the longer run too.
bool steps_may_change(const RunOptions& options) {
  return options.schedule.kind == ScheduleKind::constant ||
         options.schedule.kind == ScheduleKind::warmup_stable_decay;
}

// With the batch stated in samples, how it is cut is a matter of memory: the samples of each step stay.
bool micro_batch_may_change(const BatchSizeOptions& batch) {
  return batch.batch > 0 && (batch.ramp_from == 0 || batch.ramp_step > 0);
}

std::vector<std::string> check_resume(RunConfiguration& run, const std::string& saved_text) {
  RunConfiguration saved;
  apply_toml(saved.table, saved_text, "the saved configuration");
  if (steps_may_change(saved.options)) run.table.at("train.steps").may_change();
  if (micro_batch_may_change(saved.options.batch)) {
    for (const char* name : {"train.micro_batch", "mesh.replica", "mesh.shard"})
      run.table.at(name).may_change();
  }
  if (run.options.data.change) {
    for (const char* name : {"data.train", "data.blend"}) run.table.at(name).may_change();
  }
  std::vector<std::string> lines;
  for (const OptionDifference& difference : require_resumable(saved.table, run.table)) {
    lines.push_back(
        fmt::format("{}: {} instead of {}", difference.name, difference.after, difference.before));
  }
  return lines;
}

}  // namespace

void train_command(const TrainArguments& arguments) {
  // Asks for a save. Until the loop listens there is nothing to save; ranks inherit it.
  std::signal(SIGUSR1, SIG_IGN);
  FileEnvironment& files = system_files();
  RunConfiguration run;
  if (arguments.resume) {
    std::string folder = arguments.resume_folder;
    if (folder.empty()) {
      RunConfiguration given;
      load(given, files, arguments.configuration);
      folder = latest_run(files, given.options.folder);
    }
    load_resumed(run, files, folder, arguments.configuration);
  } else {
    load(run, files, arguments.configuration);
  }
  run.options.data.change = arguments.change_data;
  if (arguments.ranks > 0) set_ranks(run, arguments.ranks);
  validate(run.options);
  const auto check = [&run](const std::string& saved) { return check_resume(run, saved); };
  const auto settle = [&] {
    if (!run.options.resume) settle_existing_run(files, run.options);
    // Before anything is written: a refused run leaves the folder as it was.
    if (run.options.resume) check(configuration_of(files, run.options.run_folder()));
  };
  if (starts_ranks(run.options)) {
    settle();  // refused early, with one voice
    return start_ranks(run.options);
  }
  const JobRank job = join_ranks(run.options, settle);
  const std::string configuration = resolved_toml(run.table);
  share_cores(run.options, job);

  TerminalOptions terminal_options = terminal_options_for(stdout);
  terminal_options.total_steps = run.options.steps;
  const std::unique_ptr<Terminal> terminal = make_terminal(stdout, terminal_options);
  const auto lock = [](const std::string& folder) { return std::make_shared<const FolderLock>(folder); };
  train(run.options, {.files = files,
                      .terminal = *terminal,
                      .configuration = configuration,
                      .check_resume = check,
                      .initial_weights = [&] { return open_initial_weights(files, run.options); },
                      .lock = lock,
                      .communicator = job.communicator.get()});
}

}  // namespace athanor
