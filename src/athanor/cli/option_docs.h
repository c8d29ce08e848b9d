// What is derived from an option table for people and for run folders: help, docs, the resolved
// configuration and its comparison on resume.
//
// Called by the commands of `cli`. Thread safety: reads the table only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "athanor/cli/options.h"

namespace athanor {

// The options of a group ("" for all) as text for a terminal, `width` columns wide.
std::string option_help(const OptionTable& table, std::string_view group = {}, int64_t width = 100);

// The whole of docs/options.md.
std::string options_markdown(const OptionTable& table);

// Every value as TOML but those of each process. Reading it back with `load_options` or `apply_toml` gives
// the same values, bit for bit, without any base file.
std::string resolved_toml(const OptionTable& table);

struct OptionDifference {
  std::string name;
  std::string before, after;  // as TOML
  bool may_change_on_resume = false;
};

// By name, in the table's order. Both tables must have the same rows; the base option is left out, since
// all that it brought in is compared.
std::vector<OptionDifference> differences(const OptionTable& before, const OptionTable& after);

// Throws Error (user) naming every option that differs and may not change when a run is resumed. Returns
// the differences that may.
std::vector<OptionDifference> require_resumable(const OptionTable& saved, const OptionTable& current);

}  // namespace athanor
