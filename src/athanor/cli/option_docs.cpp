#include "athanor/cli/option_docs.h"

#include <fmt/format.h>

#include <algorithm>

namespace athanor {
namespace {

std::string group_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}
std::string member_of(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// Groups in order of their first option, each with its rows.
std::vector<std::pair<std::string, std::vector<const OptionRow*>>> grouped(const OptionTable& table) {
  std::vector<std::pair<std::string, std::vector<const OptionRow*>>> groups;
  for (const OptionRow& row : table.rows()) {
    const std::string group = group_of(row.name());
    auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& each) { return each.first == group; });
    if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
    found->second.push_back(&row);
  }
  return groups;
}

// Breaks at blanks; each line but the first begins with `indent` blanks.
std::string wrapped(std::string_view text, size_t first_column, size_t indent, size_t width) {
  std::string result;
  size_t column = first_column;
  while (!text.empty()) {
    const auto blank = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(std::min(blank + 1, text.size()));
    if (column > indent && column + 1 + word.size() > width) {
      result += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!result.empty() && column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

// In a Markdown table a bar ends the cell.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

}  // namespace

std::string option_help(const OptionTable& table, std::string_view group, int64_t width) {
  constexpr size_t indent = 6;
  std::string text;
  for (const auto& [name, rows] : grouped(table)) {
    if (!group.empty() && name != group && !name.starts_with(fmt::format("{}.", group))) continue;
    if (!text.empty()) text += '\n';
    text +=
        table.group_doc(name).empty() ? name + '\n' : fmt::format("{}: {}\n", name, table.group_doc(name));
    for (const OptionRow* row : rows) {
      std::string head = fmt::format("  {} = {}", row->name(), to_toml(row->default_value()));
      std::string about = row->doc();
      const std::string range = row->range();
      about += fmt::format(" [{}{}{}{}]", short_name(row->type()), range.empty() ? "" : ", ", range,
                           row->may_change_on_resume() ? "; may change on resume" : "");
      text += head + '\n' + std::string(indent, ' ') +
              wrapped(about, indent, indent, static_cast<size_t>(std::max<int64_t>(width, 40))) + '\n';
    }
  }
  return text;
}

std::string options_markdown(const OptionTable& table) {
  std::string text =
      "# Options\n\n"
      "Written by the program from its option table; do not edit.\n\n"
      "Options are set in a TOML file (`--config FILE`) or one by one (`--set NAME=VALUE`, as often as "
      "needed; "
      "it wins over the file). On the command line whole numbers may have a suffix k, M or G and lists are "
      "separated by commas. \"Resume\" says whether the option may change when a run goes on.\n";
  for (const auto& [name, rows] : grouped(table)) {
    text += fmt::format("\n## {}\n\n", name);
    if (const std::string doc = table.group_doc(name); !doc.empty()) text += doc + "\n\n";
    text += "| option | type | default | range | resume | |\n|---|---|---|---|---|---|\n";
    for (const OptionRow* row : rows) {
      text += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", row->name(), short_name(row->type()),
                          cell(to_toml(row->default_value())), cell(row->range()),
                          row->may_change_on_resume() ? "yes" : "no", cell(row->doc()));
    }
  }
  return text;
}

std::string resolved_toml(const OptionTable& table) {
  std::string text = "# The resolved configuration: every option and its value.\n";
  for (const auto& [name, rows] : grouped(table)) {
    // A table of strings is a TOML table of its own, so it follows the plain members.
    text += fmt::format("\n[{}]\n", name);
    for (const OptionRow* row : rows) {
      if (row->is_of_each_process()) continue;
      const std::string line = fmt::format("{} = {}\n", member_of(row->name()), to_toml(row->value()));
      if (row->name() == table.base_option()) {
        text += fmt::format("# from {}", line);
      } else {
        text += line;
      }
    }
  }
  return text;
}

std::vector<OptionDifference> differences(const OptionTable& before, const OptionTable& after) {
  std::vector<OptionDifference> found;
  for (const OptionRow& row : after.rows()) {
    if (row.name() == after.base_option() || row.is_of_each_process()) continue;
    const OptionRow* other = before.find(row.name());
    ATHANOR_ASSERT(other != nullptr, "the tables compared differ in {}", row.name());
    std::string old_value = to_toml(other->value());
    std::string new_value = to_toml(row.value());
    if (old_value != new_value) {
      found.push_back({row.name(), std::move(old_value), std::move(new_value), row.may_change_on_resume()});
    }
  }
  return found;
}

std::vector<OptionDifference> require_resumable(const OptionTable& saved, const OptionTable& current) {
  std::vector<OptionDifference> found = differences(saved, current);
  std::string refused;
  for (const OptionDifference& difference : found) {
    if (difference.may_change_on_resume) continue;
    refused += fmt::format("\n  {}: {} in the saved run, {} now", difference.name, difference.before,
                           difference.after);
  }
  if (!refused.empty()) {
    throw_user_error("these options may not change when a run is resumed:" + refused,
                     "give them the saved values again, or start a new run");
  }
  return found;
}

}  // namespace athanor
