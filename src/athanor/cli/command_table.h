// What the command line offers: commands and their arguments, as data. command_line.cpp reads arguments by it
// with a library that takes seconds to compile; these files need none.
//
// Called by command_line.cpp. Thread safety: values; an entry's action uses what its arguments point to.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "athanor/cli/commands.h"

namespace athanor {

struct Argument {
  // A flag, a number, a text, or several texts: one each time a name is given, or all that stand in its
  // place.
  using Target = std::variant<bool*, int*, int64_t*, double*, std::string*, std::optional<std::string>*,
                              std::vector<std::string>*>;

  std::string names;  // "-o,--output"; without dashes: it goes by its place
  Target target = static_cast<bool*>(nullptr);
  std::string about;
  std::string type = {};  // how help calls the value
  std::optional<std::pair<double, double>> bounds = {};
  bool required = false;
  bool may_be_empty = false;     // else an empty value, as an unset variable of a shell gives, is refused
  bool may_stand_alone = false;  // without a value
  bool* given = nullptr;         // becomes true when it is given
  std::string needs = {};        // another argument that must be given too
};

struct Command {
  std::string name, about;
  std::vector<Argument> arguments = {};
  std::vector<Command> commands = {};  // of which one is named behind it
  std::string footer = {};
  std::function<void()> action = {};
};

// command_table_training.cpp
Command train_entry();
Command show_entry();
Command compare_entry();
// command_table_models.cpp
Command generate_entry();
Command evaluate_entry();
Command import_entry();
Command export_entry();
// command_table_data.cpp
Command tokenizer_entry();
Command data_entry();

}  // namespace athanor
