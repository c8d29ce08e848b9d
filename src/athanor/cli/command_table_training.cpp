// Commands that train, show what would be trained, and compare what was.

#include <memory>

#include "athanor/cli/command_table.h"

namespace athanor {
namespace {

std::vector<Argument> configuration_arguments(ConfigurationArguments& to) {
  return {{.names = "-c,--config", .target = &to.file, .about = "TOML file with options", .type = "FILE"},
          {.names = "--set",
           .target = &to.settings,
           .about = "set one option; may be repeated; wins over the file",
           .type = "NAME=VALUE",
           .may_be_empty = true}};
}

}  // namespace

Command train_entry() {
  const auto to = std::make_shared<TrainArguments>();
  Command command{
      .name = "train",
      .about = "Train a model, or go on with a run.",
      .arguments = configuration_arguments(to->configuration),
      .footer =
          "`athanor help options` lists what --set and --config take.\n"
          "Several ranks are started on this machine, or found where Slurm, mpirun or a Kubernetes indexed "
          "job\n"
          "has started this program several times; docs/jobs.md says how.",
      .action = [to] { train_command(*to); }};
  command.arguments.push_back(
      {.names = "--resume",
       .target = &to->resume_folder,
       .about = "go on with the run in FOLDER, or with the latest one, with its own options",
       .type = "FOLDER",
       .may_stand_alone = true,
       .given = &to->resume});
  command.arguments.push_back(
      {.names = "--change-data",
       .target = &to->change_data,
       .about = "with --resume: go on with other sources or weights in data.blend; those that stay go on "
                "where they were",
       .needs = "--resume"});
  command.arguments.push_back(
      {.names = "--ranks",
       .target = &to->ranks,
       .about = "processes that train together; without mesh.* each has samples of its own (mesh.shard); "
                "default: those of mesh.*",
       .type = "N",
       .bounds = {{1, 1 << 20}}});
  return command;
}

Command show_entry() {
  const auto to = std::make_shared<ShowArguments>();
  Command command{.name = "show",
                  .about = "Print what a run would do, for a model of any size.",
                  .arguments = {{.names = "WHAT",
                                 .target = &to->topic,
                                 .about = "block: operations of a block; step: calls of a step; memory: the "
                                          "memory plan; parameters: the model's; options: every value",
                                 .required = true}},
                  .action = [to] { show_command(*to); }};
  for (Argument& argument : configuration_arguments(to->configuration))
    command.arguments.push_back(std::move(argument));
  command.arguments.push_back({.names = "--program",
                               .target = &to->program,
                               .about = "train (default), validate, prefill or decode",
                               .type = "NAME"});
  command.arguments.push_back(
      {.names = "--template",
       .target = &to->template_name,
       .about = "show block: the templates whose names begin so, instead of \"block\"",
       .type = "NAME"});
  return command;
}

Command compare_entry() {
  const auto to = std::make_shared<CompareArguments>();
  return {.name = "compare",
          .about = "Show the losses of runs side by side, as a table and a chart.",
          .arguments = {{.names = "RUN",
                         .target = &to->runs,
                         .about = "folders of two or more runs",
                         .required = true},
                        {.names = "--by",
                         .target = &to->by,
                         .about = "step (default), tokens or seconds: what the runs are laid along",
                         .type = "NAME"},
                        {.names = "-o,--output",
                         .target = &to->output,
                         .about = "the chart, an SVG picture; default: compare.svg",
                         .type = "FILE"}},
          .action = [to] { compare_command(*to); }};
}

}  // namespace athanor
