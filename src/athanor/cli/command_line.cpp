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
#include <memory>
#include <sstream>

#include "athanor/base/error.h"
#include "athanor/cli/command_table.h"
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

// The library's description of an argument that goes into `target`.
class OptionMaker {
 public:
  OptionMaker(CLI::App& command, const Argument& argument) : command_(command), argument_(argument) {}

  CLI::Option* operator()(bool* target) const {
    return command_.add_flag(argument_.names, *target, argument_.about);
  }
  CLI::Option* operator()(int* target) const { return number(target); }
  CLI::Option* operator()(int64_t* target) const { return number(target); }
  CLI::Option* operator()(double* target) const {
    CLI::Option* option = value(target);
    if (argument_.bounds) option->check(within(argument_.bounds->first, argument_.bounds->second));
    return option;
  }
  CLI::Option* operator()(std::string* target) const { return value(target); }
  CLI::Option* operator()(std::optional<std::string>* target) const { return value(target); }
  CLI::Option* operator()(std::vector<std::string>* target) const {
    CLI::Option* option = value(target);
    if (argument_.names.starts_with("-")) option->allow_extra_args(false);
    return option;
  }

 private:
  template <class Value>
  CLI::Option* value(Value* target) const {
    return command_.add_option(argument_.names, *target, argument_.about)->type_name(argument_.type);
  }
  template <class Integer>
  CLI::Option* number(Integer* target) const {
    CLI::Option* option = value(target);
    if (!argument_.bounds) return option->check(fits_64_bits());
    return option->check(CLI::Range(static_cast<int64_t>(argument_.bounds->first),
                                    static_cast<int64_t>(argument_.bounds->second)));
  }

  CLI::App& command_;
  const Argument& argument_;
};

class CommandLine {
 public:
  CommandLine() : app_("Trains large language models.", "athanor") {
    app_.require_subcommand(1);
    app_.footer(exit_codes);
    app_.get_formatter()->column_width(34);
    for (const Command& command :
         {train_entry(), show_entry(), generate_entry(), evaluate_entry(), compare_entry(), tokenizer_entry(),
          import_entry(), export_entry(), data_entry(), help_entry(), version_entry()})
      add(app_, command);
  }

  void run(int argc, const char* const* argv) {
    if (argc < 2) return write_output(help_of_all());
    if (argc == 2 && std::string_view(argv[1]) == "--version") return version_command();
    if (argc > 2 && std::string_view(argv[1]) == "help") {
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
    if (argc > 2) {
      for (const CLI::App* command : app_.get_subcommands({})) {
        if (argv[1] == command->get_name() && !command->get_subcommands({}).empty())
          refuse_unknown_command(*command, argv[2], command->get_name() + " ");
      }
    }
    refuse_empty_values_of_what_may_stand_alone(argc, argv);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) refuse(error);
      std::ostringstream output, errors;
      app_.exit(error, output, errors);  // help that was asked for
      return write_output(output.str());
    }
    for (const auto& [option, given] : given_) *given = option->count() > 0;
    for (const auto& [command, action] : actions_) {
      if (command->parsed() && command->get_subcommands().empty()) return action();
    }
  }

 private:
  Command help_entry() const {
    const auto to = std::make_shared<HelpOptionsArguments>();
    Command options{
        .name = "options",
        .about = "List the options of a run.",
        .arguments = {{.names = "GROUP",
                       .target = &to->group,
                       .about = "train, model, model.base ...; default: all"},
                      {.names = "--markdown", .target = &to->markdown, .about = "as docs/options.md"}},
        .action = [to] { help_options_command(*to); }};
    return {.name = "help",
            .about = "Help on a command, or on options.",
            .commands = {std::move(options)},
            .action = [this] { write_output(help_of_all()); }};
  }

  // Also when a command has been read, of which app_.help() would speak.
  std::string help_of_all() const {
    return app_.get_formatter()->make_help(&app_, app_.get_name(), CLI::AppFormatMode::Normal);
  }

  static Command version_entry() {
    return {.name = "version", .about = "Print the version.", .action = [] { version_command(); }};
  }

  void add(CLI::App& to, const Command& command) {
    CLI::App* app = to.add_subcommand(command.name, command.about);
    if (!command.footer.empty()) app->footer(command.footer);  // else that of the program
    for (const Argument& argument : command.arguments) {
      CLI::Option* option = std::visit(OptionMaker(*app, argument), argument.target);
      if (argument.required) option->required();
      if (argument.may_stand_alone) may_stand_alone_.push_back(option->expected(0, 1));
      if (argument.given != nullptr) given_.emplace_back(option, argument.given);
      if (!argument.needs.empty()) option->needs(argument.needs);
      // On its own it comes to checks with an empty value.
      if (!std::holds_alternative<bool*>(argument.target) && !argument.may_be_empty &&
          !argument.may_stand_alone)
        option->check(not_empty());
    }
    for (const Command& each : command.commands) add(*app, each);
    if (command.action)
      actions_.emplace_back(app, command.action);
    else
      app->require_subcommand(1);
  }

  void refuse_empty_values_of_what_may_stand_alone(int argc, const char* const* argv) const {
    for (const CLI::Option* option : may_stand_alone_) {
      const std::string name = "--" + option->get_lnames().front();
      for (int i = 1; i < argc; ++i) {
        const bool is_empty =
            argv[i] == name + "=" || (argv[i] == name && i + 1 < argc && *argv[i + 1] == '\0');
        if (!is_empty) continue;
        throw_user_error(fmt::format("{} {}: the value is empty", argv[1], name),
                         fmt::format("give one, or {} alone", name));
      }
    }
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
  std::vector<std::pair<const CLI::Option*, bool*>> given_;
  std::vector<const CLI::Option*> may_stand_alone_;
  std::vector<std::pair<CLI::App*, std::function<void()>>> actions_;
};

}  // namespace

void run_command_line(int argc, const char* const* argv) {
  CommandLine().run(argc, argv);
}

}  // namespace athanor
