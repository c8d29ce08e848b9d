#include "athanor/cli/command_line.h"

// CLI11 is included here only: it costs seconds.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/near_name.h"
#include "athanor/cli/option_value.h"

namespace athanor {
namespace {

constexpr const char* exit_codes =
    "Exit codes:\n"
    "  0  done, or stopped by a signal or the time limit after saving\n"
    "  1  an error without a kind\n"
    "  2  a bad option, file or data: the message says which, the hint what to do\n"
    "  3  the run cannot go on as it is: do not try again\n"
    "  4  a new process may go on with the run\n"
    "  5  the step may be tried again\n";

std::string printable_argument(const std::string& text) {
  return is_valid_utf8(text) ? text.substr(0, 200) : "(not UTF-8)";
}

// CLI::Range takes NaN for a number of its range.
CLI::Validator within(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return std::string();
    return fmt::format("{} is no number from {} to {}", text, least, most);
  };
  return {check, ""};
}

// CLI11 takes the nearest number of 64 bits for one that is larger.
CLI::Validator fits_64_bits() {
  const auto check = [](const std::string& text) {
    errno = 0;
    std::strtoll(text.c_str(), nullptr, 0);
    return errno == ERANGE ? fmt::format("{} does not fit in 64 bits", text) : std::string();
  };
  return {check, ""};
}

// CLI11 takes an empty value, as an unset variable of a shell gives, for 0 or for the default.
CLI::Validator not_empty() {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("the value is empty: give one, or leave the option out")
                        : std::string();
  };
  return {check, ""};
}

class CommandLine {
 public:
  CommandLine() : app_("Trains large language models.", "athanor") {
    app_.require_subcommand(1);
    app_.footer(exit_codes);
    app_.get_formatter()->column_width(34);
    add_train();
    add_show();
    add_generate();
    add_evaluate();
    add_compare();
    add_tokenizer();
    add_import();
    add_export();
    add_data();
    add_help();
    CLI::App* version = add_command("version", "Print the version.");
    on(version, [] { version_command(); });
    refuse_empty_values(app_);
  }

  void run(int argc, const char* const* argv) {
    if (argc < 2) return write_output(app_.help());
    if (argc == 2 && std::string_view(argv[1]) == "--version") return version_command();
    if (argv[1] == help_->get_name()) {
      if (argc == 2) return write_output(app_.help());
      // `athanor help data build` is `athanor data build --help`.
      if (const std::vector<std::string> names = names_of(app_);
          std::find(names.begin(), names.end(), argv[2]) != names.end()) {
        std::vector<const char*> words(argv, argv + argc);
        words.erase(words.begin() + 1);
        words.push_back("--help");
        return run(argc, words.data());
      }
    }
    refuse_unknown_command(app_, argv[1], "");
    for (const CLI::App* command : {help_, tokenizer_, data_}) {
      if (argc > 2 && argv[1] == command->get_name()) {
        refuse_unknown_command(*command, argv[2], command->get_name() + " ");
      }
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) refuse(error);
      std::ostringstream output, errors;
      app_.exit(error, output, errors);  // help that was asked for
      return write_output(output.str());
    }
    for (const auto& [command, action] : actions_) {
      if (command->parsed() && command->get_subcommands().empty()) return action();
    }
  }

 private:
  CLI::App* add_command(const std::string& name, const std::string& about) {
    return app_.add_subcommand(name, about);
  }

  void on(CLI::App* command, std::function<void()> action) {
    actions_.emplace_back(command, std::move(action));
  }

  static void add_configuration(CLI::App* command, ConfigurationArguments& arguments) {
    command->add_option("-c,--config", arguments.file, "TOML file with options")->type_name("FILE");
    add_settings(command, arguments.settings);
  }

  static void add_settings(CLI::App* command, std::vector<std::string>& settings) {
    command->add_option("--set", settings, "set one option; may be repeated; wins over the file")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
  }

  static void add_count(CLI::App* command, const char* flag, int64_t& value, const char* about, int64_t least,
                        int64_t most) {
    command->add_option(flag, value, about)->type_name("N")->check(CLI::Range(least, most));
  }

  void add_train() {
    CLI::App* command = add_command("train", "Train a model, or go on with a run.");
    add_configuration(command, train_.configuration);
    CLI::Option* resume =
        command
            ->add_option("--resume", train_.resume_folder,
                         "go on with the run in FOLDER, or with the latest one, with its own "
                         "options")
            ->type_name("FOLDER")
            ->expected(0, 1);
    command
        ->add_flag("--change-data", train_.change_data,
                   "with --resume: go on with other sources or weights in data.blend; those that stay go on "
                   "where they were")
        ->needs(resume);
    command
        ->add_option(
            "--ranks", train_.ranks,
            "processes that train together; without mesh.* each has samples of its own (mesh.shard); "
            "default: those of mesh.*")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20));
    command->footer(
        "`athanor help options` lists what --set and --config take.\n"
        "Several ranks are started on this machine, or found where Slurm, mpirun or a Kubernetes indexed "
        "job\n"
        "has started this program several times; docs/jobs.md says how.");
    on(command, [this, resume] {
      train_.resume = resume->count() > 0;
      train_command(train_);
    });
  }

  void add_show() {
    CLI::App* command = add_command("show", "Print what a run would do, for a model of any size.");
    command
        ->add_option("WHAT", show_.topic,
                     "block: operations of a block; step: calls of a step; memory: the memory plan; "
                     "parameters: the model's; options: every value")
        ->required()
        ->type_name("");
    add_configuration(command, show_.configuration);
    command->add_option("--program", show_.program, "train (default), validate, prefill or decode")
        ->type_name("NAME");
    command
        ->add_option("--template", show_.template_name,
                     "show block: the templates whose names begin so, instead of \"block\"")
        ->type_name("NAME");
    on(command, [this] { show_command(show_); });
  }

  static void add_inference(CLI::App* command, InferenceArguments& arguments) {
    command
        ->add_option(
            "MODEL", arguments.model,
            "folder of a run (its latest checkpoint), a checkpoint file, an imported folder or one in "
            "Hugging Face's form; default: the latest run in runs/")
        ->type_name("");
    command
        ->add_option("--precision", arguments.precision,
                     "fp32, bf16 or fp16; default: as the weights are kept, fp32 for those of runs")
        ->type_name("TYPE");
    command
        ->add_option("--tokenizer", arguments.tokenizer,
                     "tokenizer.json or its folder, or bytes; default: the one kept with the model")
        ->type_name("FILE");
    command->add_flag("--no-average", arguments.no_average,
                      "not the averaged weights, where the run has them (optimizer.average_decay)");
    command->add_option("--threads", arguments.threads, "of each rank; 0: all cores, shared")
        ->type_name("N")
        ->check(CLI::Range(0, 4096));
    command->add_option("--ranks", arguments.ranks, "processes that share the work (--tensor)")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20));
    command
        ->add_option(
            "--tensor", arguments.tensor,
            "ranks that share a model which is too large for one: each has a part of every layer (1)")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 12));
  }

  void add_generate() {
    CLI::App* command = add_command("generate", "Write text with a model.");
    GenerateArguments& a = generate_;
    add_inference(command, a.inference);
    const auto count = [command](auto&&... arguments) { add_count(command, arguments...); };
    constexpr int64_t many = int64_t{1} << 31;
    command
        ->add_option("-p,--prompt", a.prompts,
                     "text to continue; may be repeated; without one, what standard input holds")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    command
        ->add_option(
            "--file", a.file,
            "prompts: one a line, or JSON lines where the name ends in .jsonl (a string, or an object "
            "with \"prompt\"); - is standard input")
        ->type_name("FILE");
    count("-n,--max-tokens", a.max_tokens, "tokens to write behind each prompt (300)", 0, many);
    command->add_option("-t,--temperature", a.temperature, "0: always the likeliest token (0.8)")
        ->type_name("T")
        ->check(within(0, 1e6));
    count("--top-k", a.top_k, "draw among so many likeliest; 0: all (0)", 0, many);
    command->add_option("--top-p", a.top_p, "draw among the fewest likeliest that have this probability (1)")
        ->type_name("P")
        ->check(within(1e-12, 1));
    command
        ->add_option("--seed", a.seed,
                     "another seed, another text (0); a prompt's text depends on no other prompt")
        ->type_name("N")
        ->check(fits_64_bits());
    command->add_option("--stop", a.stops, "end before this text; may be repeated")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    count("--batch", a.batch, "prompts each model works on at a time (8); changes the speed only", 1, 4096);
    count("--context", a.context, "longest sequence; 0: what the model allows (0)", 0, many);
    command->add_flag("--special-tokens", a.special_tokens,
                      "text in prompts that spells a special token becomes it");
    command->add_flag("--json", a.json, "a line of JSON for each prompt, in their order");
    command->footer(
        "One prompt's text is written as it comes; of several each with its prompt, and --- between.\n"
        "A sequence that has filled the context goes on behind its later half.");
    on(command, [this] { generate_command(generate_); });
  }

  void add_evaluate() {
    CLI::App* command = add_command("evaluate", "Measure how well a model predicts texts.");
    EvaluateArguments& a = evaluate_;
    add_inference(command, a.inference);
    const auto count = [command](auto&&... arguments) { add_count(command, arguments...); };
    constexpr int64_t many = int64_t{1} << 50;
    command
        ->add_option("--data", a.data,
                     "text or tokens (as data.train), or the name of a validation set of the model's run; "
                     "default: all of those")
        ->type_name("DATA");
    count("--tokens", a.tokens, "only so many from the beginning; 0: all (0)", 0, many);
    count("--sequence", a.sequence,
          "tokens of a window; 0: as trained, or 1024 at most where that is not known (0)", 0,
          int64_t{1} << 31);
    count("--stride", a.stride,
          "tokens a window moves on by, which are those it scores; 0: its length. Smaller ones leave more "
          "context and take longer (0)",
          0, int64_t{1} << 31);
    count("--batch", a.batch, "windows each rank works on at a time (8); changes the speed only", 1, 65536);
    command->add_flag("--shard-weights", a.shard_weights,
                      "each of --ranks keeps a part of the weights and gathers a layer when it needs it");
    command->add_flag("--json", a.json, "a line of JSON for each set");
    command->footer(
        "Every token but the first is scored once; tokens that a data file marks as not learned are left "
        "out.\n"
        "Bits per byte: the bytes are those of the scored tokens' text; special tokens have none.");
    on(command, [this] { evaluate_command(evaluate_); });
  }

  void add_compare() {
    CLI::App* command =
        add_command("compare", "Show the losses of runs side by side, as a table and a chart.");
    command->add_option("RUN", compare_.runs, "folders of two or more runs")->required()->type_name("");
    command
        ->add_option("--by", compare_.by, "step (default), tokens or seconds: what the runs are laid along")
        ->type_name("NAME");
    command->add_option("-o,--output", compare_.output, "the chart, an SVG picture; default: compare.svg")
        ->type_name("FILE");
    on(command, [this] { compare_command(compare_); });
  }

  void add_tokenizer() {
    tokenizer_ = add_command("tokenizer", "Turn text into tokens and back; learn how.");
    tokenizer_->require_subcommand(1);
    const auto add = [&](const std::string& name, const std::string& about,
                         void (*action)(const TokenizerArguments&)) {
      CLI::App* command = tokenizer_->add_subcommand(name, about);
      command
          ->add_option(
              "TOKENIZER", tokenizer_arguments_.tokenizer,
              "\"bytes\", a tokenizer.json, a vocab.json with merges.txt beside it, or a folder of either")
          ->required()
          ->type_name("");
      on(command, [this, action] { action(tokenizer_arguments_); });
      return command;
    };
    const auto add_streams = [&](CLI::App* command) {
      command->add_option("-i,--input", tokenizer_arguments_.input, "default: standard input")
          ->type_name("FILE");
      command->add_option("-o,--output", tokenizer_arguments_.output, "default: standard output")
          ->type_name("FILE");
    };
    const auto add_text = [&](CLI::App* command, const std::string& about) {
      command->add_option("--text", tokenizer_arguments_.text, about)->type_name("TEXT");
      command->add_flag("--special", tokenizer_arguments_.special_tokens,
                        "text that spells a special token becomes it; default: it is text like any other");
    };
    CLI::App* encode = add("encode", "Print the ids of a text, and on standard error how well they fit it.",
                           tokenizer_encode_command);
    add_streams(encode);
    add_text(encode, "instead of an input");
    CLI::App* decode = add("decode", "Print the text of ids.", tokenizer_decode_command);
    add_streams(decode);
    decode->add_flag("--special", tokenizer_arguments_.special_tokens,
                     "show special tokens; default: leave them out");
    CLI::App* show = add("show", "Print what a tokenizer is.", tokenizer_show_command);
    add_text(show, "also show the tokens of this text");
    add_tokenizer_train();
  }

  void add_tokenizer_train() {
    CLI::App* command = tokenizer_->add_subcommand("train", "Learn a tokenizer from text.");
    TokenizerTrainArguments& arguments = tokenizer_train_;
    command
        ->add_option("TEXT", arguments.inputs,
                     "texts, JSON lines (.jsonl), folders and patterns of them; -: standard input")
        ->required()
        ->type_name("");
    command
        ->add_option("--vocabulary", arguments.vocabulary,
                     "tokens in all: 256 bytes, learned ones, special ones")
        ->required()
        ->type_name("N")
        ->check(fits_64_bits());
    command->add_option("-o,--output", arguments.output, "the tokenizer.json to write")
        ->required()
        ->type_name("FILE");
    command
        ->add_option("--pattern", arguments.pattern, "how text is cut into words: gpt2 (default) or llama3")
        ->type_name("NAME");
    command
        ->add_option("--special", arguments.special_tokens,
                     "special token; may be repeated, the first ends a text; default: <|endoftext|>")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    command
        ->add_option("--separator", arguments.separator,
                     "a line of a text that equals it ends a document; default: a file is one document")
        ->type_name("LINE");
    command->add_option("--field", arguments.field, "member of JSON lines that holds the text; default: text")
        ->type_name("NAME");
    command
        ->add_option("--memory", arguments.memory,
                     "limit in bytes, also as 500M or 4G: words that do not fit are counted on disk, beside "
                     "the output; default: half of what is free")
        ->type_name("BYTES");
    command->add_option("--threads", arguments.threads, "default: all cores; the result is the same")
        ->type_name("N")
        ->check(fits_64_bits());
    on(command, [this] { tokenizer_train_command(tokenizer_train_); });
  }

  void add_import() {
    CLI::App* command =
        add_command("import", "Take over a model in Hugging Face's form: GPT-2, Llama, Mistral.");
    command->add_option("FOLDER", import_.folder, "folder with config.json and safetensors files")
        ->required()
        ->type_name("");
    command
        ->add_option("-o,--output", import_.output, "folder to make; `generate` and train.init_from take it")
        ->required()
        ->type_name("FOLDER");
    command->footer(
        "The weights keep their types. docs/formats/hugging_face.md says what is read and what is refused.");
    on(command, [this] { import_command(import_); });
  }

  void add_export() {
    CLI::App* command = add_command("export", "Write a model in Hugging Face's form.");
    command
        ->add_option("SOURCE", export_.source,
                     "folder of a run (its latest checkpoint), a checkpoint file, or an imported folder")
        ->required()
        ->type_name("");
    command->add_option("-o,--output", export_.output, "folder to make")->required()->type_name("FOLDER");
    command
        ->add_option("--dtype", export_.dtype, "fp32, bf16, fp16 or fp64; default: as the weights are kept")
        ->type_name("TYPE");
    command
        ->add_option("--max-shard-size", export_.max_shard_size,
                     "size of a file of weights, as 5GB (default), 500MB, 2GiB")
        ->type_name("SIZE");
    command->add_flag("--average", export_.average, "the averaged weights (optimizer.average_decay)");
    on(command, [this] { export_command(export_); });
  }

  void add_data() {
    data_ = add_command("data", "Make files of tokens, and look into them.");
    data_->require_subcommand(1);
    CLI::App* build = data_->add_subcommand("build", "Turn texts and JSON lines into a dataset.");
    DataBuildArguments& to = data_build_;
    build->add_option("INPUT", to.inputs, "files, folders (their files sorted by path) or quoted patterns")
        ->required()
        ->type_name("");
    build->add_option("-o,--output", to.output, "beginning of the names of the files that are written")
        ->required()
        ->type_name("PREFIX");
    build
        ->add_option("--tokenizer", to.tokenizer,
                     "bytes (default), a tokenizer.json, a vocab.json with merges.txt, or a folder of either")
        ->type_name("TOKENIZER");
    build->add_option("--format", to.format, "athanor (default) or megatron")->type_name("NAME");
    build->add_option("--field", to.field, "member of a JSON line that holds its text (default: text)")
        ->type_name("NAME");
    build
        ->add_option(
            "--chat-template", to.chat_template,
            "plain (default), chatml or llama-3: how JSON lines with \"messages\", or \"prompt\" and "
            "\"answer\", become text; only what the assistant says is learned")
        ->type_name("NAME");
    build->add_option("--separator", to.separator, "line of a text that ends a document")->type_name("LINE");
    build->add_option("--threads", to.threads, "0: all cores (default)")
        ->type_name("N")
        ->check(fits_64_bits());
    build
        ->add_option("--validation-fraction", to.validation_fraction,
                     "share of the documents, drawn by number")
        ->type_name("X");
    build->add_option("--test-fraction", to.test_fraction, "share of the documents")->type_name("X");
    build->add_option("--split-seed", to.split_seed, "another seed, another split (default: 1)")
        ->type_name("N")
        ->check(fits_64_bits());
    build->add_flag("--skip-bad", to.skip_bad, "leave out JSON lines that cannot be read, and count them");
    build->add_flag("--overwrite", to.overwrite, "replace files of before");
    build->footer("A build that was stopped goes on when it is called again, with the same result.");
    on(build, [this] { data_build_command(data_build_); });

    CLI::App* inspect =
        data_->add_subcommand("inspect", "Print what files of tokens hold; reads all of them.");
    inspect->add_option("FILE", data_inspect_.inputs, "token files of any kind, folders or patterns")
        ->required()
        ->type_name("");
    inspect->add_option("--tokenizer", data_inspect_.tokenizer, "shows the first documents as text")
        ->type_name("TOKENIZER");
    inspect->add_option("--documents", data_inspect_.documents, "so many of them (default: 3)")
        ->type_name("N")
        ->check(fits_64_bits());
    on(inspect, [this] { data_inspect_command(data_inspect_); });
  }

  void add_help() {
    help_ = add_command("help", "Help on a command, or on options.");
    CLI::App* options = help_->add_subcommand("options", "List the options of a run.");
    options->add_option("GROUP", help_options_.group, "train, model, model.base ...; default: all")
        ->type_name("");
    options->add_flag("--markdown", help_options_.markdown, "as docs/options.md");
    on(options, [this] { help_options_command(help_options_); });
  }

  // Texts may be empty; so may --resume, which stands for the latest run on its own; commands judge --output.
  static void refuse_empty_values(CLI::App& app) {
    const std::vector<std::string> texts = {"prompt", "text", "stop", "separator", "set", "resume", "output"};
    for (CLI::Option* option : app.get_options()) {
      const std::vector<std::string>& names = option->get_lnames();
      const bool is_text = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return std::find(texts.begin(), texts.end(), name) != texts.end();
      });
      if (option->get_items_expected_max() > 0 && !is_text) option->check(not_empty());
    }
    for (CLI::App* command : app.get_subcommands({})) refuse_empty_values(*command);
  }

  static std::vector<std::string> names_of(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
  }

  static void refuse_unknown_command(const CLI::App& app, const std::string& word,
                                     const std::string& prefix) {
    const std::vector<std::string> names = names_of(app);
    if (word.starts_with("-") || std::find(names.begin(), names.end(), word) != names.end()) return;
    const std::string near = nearest_name(word, names);
    throw_user_error(fmt::format("athanor {}{}: there is no such command", prefix, printable_argument(word)),
                     near.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                                  : fmt::format("did you mean athanor {}{}?", prefix, near));
  }

  [[noreturn]] void refuse(const CLI::ParseError& error) const {
    std::string command;
    const CLI::App* app = &app_;
    while (!app->get_subcommands().empty()) {
      app = app->get_subcommands().front();
      command += app->get_name() + " ";
    }
    const std::string prefix = command.empty() ? "" : command.substr(0, command.size() - 1) + ": ";
    const std::string hint = fmt::format("see athanor {}--help", command);
    std::vector<std::string> extra = app_.remaining(true);
    if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || extra.empty()) {
      throw_user_error(prefix + printable_argument(error.what()), hint);
    }
    // A wrong flag comes before what was meant as its value.
    std::stable_partition(extra.begin(), extra.end(), [](const auto& word) { return word.starts_with("-"); });
    std::vector<std::string> flags;
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
    const std::string near = nearest_name(extra.front().substr(0, extra.front().find('=')), flags);
    throw_user_error(fmt::format("{}{} was not expected", prefix, printable_argument(extra.front())),
                     near.empty() ? hint : fmt::format("did you mean {}?", near));
  }

  CLI::App app_;
  CLI::App *help_ = nullptr, *tokenizer_ = nullptr, *data_ = nullptr;
  TrainArguments train_;
  ShowArguments show_;
  GenerateArguments generate_;
  EvaluateArguments evaluate_;
  CompareArguments compare_;
  TokenizerArguments tokenizer_arguments_;
  ImportArguments import_;
  ExportArguments export_;
  DataBuildArguments data_build_;
  DataInspectArguments data_inspect_;
  TokenizerTrainArguments tokenizer_train_;
  HelpOptionsArguments help_options_;
  std::vector<std::pair<CLI::App*, std::function<void()>>> actions_;
};

}  // namespace

void run_command_line(int argc, const char* const* argv) {
  CommandLine().run(argc, argv);
}

}  // namespace athanor
