#include <fmt/format.h>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/near_name.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/run_options.h"
#include "athanor/program/collective_report.h"
#include "athanor/train/engine.h"
#include "athanor/train/rank_layout.h"
#include "athanor/train/report_tables.h"
#include "athanor/train/schedule.h"

namespace athanor {
namespace {

struct ProgramChoice {
  const char* name;
  ProgramKind kind;
};
constexpr ProgramChoice program_choices[] = {{"train", ProgramKind::train},
                                             {"validate", ProgramKind::validate},
                                             {"prefill", ProgramKind::prefill},
                                             {"decode", ProgramKind::decode}};

ProgramKind kind_of(const std::string& name) {
  std::vector<std::string> names;
  for (const ProgramChoice& choice : program_choices) {
    if (name == choice.name) return choice.kind;
    names.emplace_back(choice.name);
  }
  const std::string near = nearest_name(name, names);
  throw_user_error(fmt::format("--program {}: there is no such program", name),
                   near.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                                : fmt::format("did you mean {}?", near));
}

// The programs of a run with the largest batch, as one rank of its mesh has them, compiled and not allocated:
// any size will do.
EngineOptions engine_options(const RunOptions& run, ProgramKind kind) {
  EngineOptions options;
  options.model = run.model;
  options.compile = run.compile;
  options.kernels = run.kernels;
  options.threads = run.threads;
  options.seed = run.seed;
  options.micro_batch = run.micro_batch;
  options.sequence_length = padded_sequence(run.compile.layout, run.data.sequence_length);
  options.micro_batch_counts.clear();
  if (kind == ProgramKind::train) {
    options.micro_batch_counts.push_back(micro_batch_counts(run.batch, run.samples_at_once()).back());
  }
  if (kind == ProgramKind::validate) options.validation_micro_batch = run.micro_batch;
  if (uses_cache(kind)) {  // a prompt as long as a training sample, or one token of each of a micro-batch
    options.generation = {run.micro_batch, run.data.sequence_length, {run.data.sequence_length}};
  }
  return options;
}

std::string templates_text(const StepProgram& program, const std::string& prefix) {
  std::string text;
  std::vector<std::string> names;
  for (const Template& block : program.templates) {
    names.push_back(block.name);
    if (!block.name.starts_with(prefix)) continue;
    if (!text.empty()) text += '\n';
    text += to_text(block);
  }
  if (text.empty()) {
    throw_user_error(fmt::format("no template of the {} program has a name that begins with {}",
                                 name_of(program.kind), prefix),
                     fmt::format("there are {}", fmt::join(names, ", ")));
  }
  return text;
}

std::string notes_text(const ProgramSet& set) {
  std::string text;
  for (const std::string& note : set.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace

const std::vector<std::string>& show_topics() {
  static const std::vector<std::string> topics = {"block", "step", "memory", "parameters", "options"};
  return topics;
}

void show_command(const ShowArguments& arguments) {
  FileEnvironment& files = system_files();
  const std::string& topic = arguments.topic;
  if (std::find(show_topics().begin(), show_topics().end(), topic) == show_topics().end()) {
    const std::string near = nearest_name(topic, show_topics());
    throw_user_error(fmt::format("show {}: there is no such thing to show", topic),
                     near.empty() ? fmt::format("there are {}", fmt::join(show_topics(), ", "))
                                  : fmt::format("did you mean {}?", near));
  }
  RunConfiguration run;
  load_run_options(run, files, arguments.configuration.file, arguments.configuration.settings);
  validate(run.options);
  if (topic == "options") return write_output(resolved_toml(run.table));

  const Engine engine(engine_options(run.options, kind_of(arguments.program)));
  const ProgramSet& set = engine.programs();
  // Programs with a cache come as a pair: prefill, decode.
  const StepProgram& program =
      kind_of(arguments.program) == ProgramKind::decode ? set.programs.back() : set.programs.front();
  std::string text = notes_text(set);
  if (topic == "block") text += templates_text(program, arguments.template_name.value_or("block"));
  if (topic == "step") text += calls_text(program);
  if (topic == "memory")
    text += memory_text(program, set.persistent_bytes) + collectives_text(program, set.gradient_wire);
  if (topic == "parameters") text += parameter_table(set, run.options.model);
  write_output(text);
}

}  // namespace athanor
