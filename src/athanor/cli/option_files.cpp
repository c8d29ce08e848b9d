#include "athanor/cli/option_files.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

namespace athanor {
namespace {

constexpr int64_t largest_file = 1 << 20;  // bytes
constexpr int most_key_parts = 8;

// The line of a key with more parts than any option has, 0 if there is none. The parser makes a table of each
// part of a.b.c.d, however many there are, and tables in tables are destroyed by recursion.
int line_of_long_key(std::string_view text) {
  int line = 1, dots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::string_view mark =
          text.substr(at, 3) == std::string(3, c) ? text.substr(at, 3) : text.substr(at, 1);
      size_t end = at + mark.size();
      while (end < text.size() && text.substr(end, mark.size()) != mark &&
             (mark.size() == 3 || text[end] != '\n')) {
        end += c == '"' && text[end] == '\\' ? size_t{2} : size_t{1};
      }
      end = std::min(end, text.size());
      line += static_cast<int>(std::count(text.begin() + static_cast<ptrdiff_t>(at),
                                          text.begin() + static_cast<ptrdiff_t>(end), '\n'));
      at = end < text.size() && text[end] == '\n' ? end - 1 : end + mark.size() - 1;
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;
    } else if (c == '.') {
      if (++dots >= most_key_parts) return line;
    } else if (c != ' ' && std::string_view("=,{}[]\n").find(c) != std::string_view::npos) {
      dots = 0;
      if (c == '\n') ++line;
    }
  }
  return 0;
}

struct Assignment {
  OptionRow* row = nullptr;
  OptionValue value;
  std::string origin;  // FILE:LINE
};

std::string_view describe(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array of such items";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
    case toml::node_type::none:
      break;
  }
  return "nothing";
}

class TomlReader {
 public:
  TomlReader(OptionTable& table, std::string file, std::string_view group)
      : table_(table), file_(std::move(file)), group_(group) {}

  std::vector<Assignment> read(std::string_view text) {
    if (const int line = line_of_long_key(text)) {
      throw_user_error(fmt::format("{}:{}: a name of more than {} parts", file_, line, most_key_parts),
                       "names of options have two or three: train.steps");
    }
    try {
      const toml::table root = toml::parse(text, file_);
      walk(root, "");
    } catch (const toml::parse_error& error) {
      throw_user_error(fmt::format("{}:{}: {}", file_, error.source().begin.line, error.description()),
                       "the file must be TOML, see https://toml.io");
    }
    return std::move(assignments_);
  }

 private:
  std::string origin(const toml::node& node) const {
    return fmt::format("{}:{}", file_, node.source().begin.line);
  }

  void walk(const toml::table& table, const std::string& prefix) {
    // In the order of the file, so that the first fault reported is the first one in it.
    std::vector<std::pair<std::string, const toml::node*>> members;
    for (const auto& [key, node] : table) members.emplace_back(std::string(key.str()), &node);
    std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
      return a.second->source().begin.line < b.second->source().begin.line;
    });
    for (const auto& [key, node] : members) {
      const std::string name = prefix + key;
      if (!is_plain_name(key)) table_.refuse_name(name, origin(*node));
      OptionRow* row = table_.find(name);
      if (row == nullptr && node->is_table() && table_.is_group(name)) {
        walk(*node->as_table(), name + ".");
        continue;
      }
      if (row == nullptr) table_.refuse_name(name, origin(*node));
      if (!group_.empty() && !name.starts_with(group_ + ".")) {
        throw_user_error(fmt::format("{}: {} does not belong here: this file holds options of [{}] only",
                                     origin(*node), name, group_));
      }
      assignments_.push_back({row, convert(*row, *node), origin(*node)});
    }
  }

  [[noreturn]] void refuse_type(const OptionRow& row, const toml::node& node) const {
    throw_user_error(fmt::format("{}: {} wants {}, not {}", origin(node), row.name(),
                                 athanor::describe(row.type()), describe(node)),
                     fmt::format("{}: {}", row.name(), row.doc()));
  }

  // Types are compared in OptionRow::set; here only what OptionValue cannot hold is refused.
  OptionValue convert(const OptionRow& row, const toml::node& node) const {
    if (const auto* value = node.as_boolean()) return value->get();
    if (const auto* value = node.as_integer()) return int64_t{value->get()};
    if (const auto* value = node.as_floating_point()) return value->get();
    if (const auto* value = node.as_string()) return value->get();
    if (const auto* array = node.as_array()) {
      if (array->empty()) return StringList{};
      if (array->is_homogeneous<int64_t>()) return items<IntegerList, int64_t>(*array);
      if (array->is_homogeneous<std::string>()) return items<StringList, std::string>(*array);
    }
    if (const auto* map = node.as_table(); map != nullptr && row.type() == OptionType::string_map) {
      StringMap entries;
      for (const auto& [key, item] : *map) {
        if (!is_plain_name(key.str())) {
          throw_user_error(fmt::format("{}: the name of an entry of {} has letters, digits, _ and - only",
                                       origin(item), row.name()));
        }
        const auto* text = item.as_string();
        if (text == nullptr) refuse_type(row, item);
        entries[std::string(key.str())] = text->get();
      }
      return entries;
    }
    refuse_type(row, node);
  }

  template <typename List, typename Item>
  static List items(const toml::array& array) {
    List list;
    for (const toml::node& node : array) list.push_back(node.as<Item>()->get());
    return list;
  }

  OptionTable& table_;
  std::string file_, group_;
  std::vector<Assignment> assignments_;
};

// Stores the values of one option only, so that it is known before the others.
void apply_one(OptionTable& table, const OptionRow& row, const std::vector<Assignment>& assignments,
               const std::vector<std::string>& settings) {
  for (const Assignment& assignment : assignments) {
    if (assignment.row == &row) assignment.row->set(assignment.value, assignment.origin);
  }
  for (const std::string& setting : settings) {
    if (split_setting(setting).first == row.name()) table.apply_setting(setting);
  }
}

void apply_all(OptionTable& table, const std::vector<Assignment>& assignments,
               const std::vector<std::string>& settings) {
  if (!table.leading_option().empty()) {
    apply_one(table, table.at(table.leading_option()), assignments, settings);
    table.apply_leading_option();
  }
  for (const Assignment& assignment : assignments) assignment.row->set(assignment.value, assignment.origin);
  for (const std::string& setting : settings) table.apply_setting(setting);
}

// The path of the base file called `name`; throws with the names there are.
std::string find_base_file(FileEnvironment& files, const OptionTable& table, const OptionSources& sources,
                           const std::string& name, const std::string& origin) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".toml");
  if (is_path) return name;
  std::vector<std::string> names;
  for (const std::string& folder : sources.base_folders) {
    const auto status = files.status(folder);
    if (!status || !status->is_directory) continue;
    const std::string path = join_path(folder, name + ".toml");
    if (files.exists(path)) return path;
    for (const std::string& entry : files.list(folder)) {
      if (entry.ends_with(".toml")) names.push_back(entry.substr(0, entry.size() - 5));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  throw_user_error(
      fmt::format("{}: {} = {}: there is no {}.toml in {}", origin, table.base_option(), quote_toml(name),
                  name, fmt::join(sources.base_folders, ", ")),
      names.empty() ? "give the path of a file" : fmt::format("there are {}", fmt::join(names, ", ")));
}

}  // namespace

void load_options(OptionTable& table, FileEnvironment& files, const OptionSources& sources) {
  std::vector<Assignment> assignments;
  if (!sources.file.empty()) {
    const std::string text = read_file(files, sources.file, largest_file);
    assignments = TomlReader(table, sources.file, {}).read(text);
  }
  if (!table.base_option().empty()) {
    const OptionRow& base = table.at(table.base_option());
    apply_one(table, base, assignments, sources.settings);
    const std::string name = std::get<std::string>(base.value());
    if (!name.empty()) {
      const std::string path = find_base_file(files, table, sources, name, base.origin());
      auto layers = TomlReader(table, path, table.base_group()).read(read_file(files, path, largest_file));
      for (const Assignment& assignment : layers) {
        if (assignment.row == &base) {
          throw_user_error(fmt::format("{}: a base file has no base of its own", assignment.origin));
        }
      }
      layers.insert(layers.end(), assignments.begin(), assignments.end());
      assignments = std::move(layers);
    }
  }
  if (!sources.source_option.empty()) {
    const OptionRow& source = table.at(sources.source_option);
    apply_one(table, source, assignments, sources.settings);
    if (const auto value = std::get<std::string>(source.value()); !value.empty()) {
      auto layers = TomlReader(table, value, {}).read(sources.source_text(value));
      layers.insert(layers.end(), assignments.begin(), assignments.end());
      assignments = std::move(layers);
    }
  }
  apply_all(table, assignments, sources.settings);
}

void apply_toml(OptionTable& table, std::string_view text, const std::string& file, std::string_view group) {
  apply_all(table, TomlReader(table, file, group).read(text), {});
}

std::vector<std::string> model_configuration_folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> folders = {"configs/models"};
  std::error_code failed;
  fs::path folder = fs::read_symlink("/proc/self/exe", failed).parent_path();
  // build/release/athanor lies two folders below the root; stop soon rather than search the whole system.
  for (int level = 0; level < 4 && !failed && folder.has_relative_path(); ++level) {
    folders.push_back((folder / "configs" / "models").string());
    folder = folder.parent_path();
  }
  return folders;
}

}  // namespace athanor
