// Reads options from TOML files and command-line settings into an option table.
//
// Called by the commands of `cli`. Thread safety: one thread at a time per table.
//
// Values are layered, later ones win: the defaults; what the source option brings; the base file; the
// configuration file; the settings in their order. The base file is named by the table's base option
// (`model.base = "gpt2-124m"`), in the configuration file or in a setting, and may only hold options of the
// base group (`[model]`). The leading option (`model.family`), wherever it is given, is stored first.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/cli/options.h"

namespace athanor {

struct OptionSources {
  std::string file;                       // path of a TOML file; empty: none
  std::vector<std::string> settings;      // "NAME=VALUE", as after --set
  std::vector<std::string> base_folders;  // where the base option's name is looked up, as FOLDER/NAME.toml
  // An option whose value names something that has options of its own, and the TOML text of those. They lie
  // beneath the base file.
  std::string source_option = {};
  std::function<std::string(const std::string& value)> source_text = {};
};

// Throws Error (user) with FILE:LINE, what is wrong, and the option's doc or the nearest name as hint.
void load_options(OptionTable& table, FileEnvironment& files, const OptionSources& sources);

// Applies a TOML text whose lines are reported as `file`:LINE. With `group` not empty, options outside of it
// are refused. Does not read a base file.
void apply_toml(OptionTable& table, std::string_view text, const std::string& file,
                std::string_view group = {});

// configs/models in the current folder, then in the folders above the program's executable: so that a
// build and an installation find them from anywhere.
std::vector<std::string> model_configuration_folders();

}  // namespace athanor
