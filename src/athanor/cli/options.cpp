#include "athanor/cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "athanor/cli/near_name.h"

namespace athanor {
namespace {

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

std::string show_bound(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 1e15 ? fmt::format("{:.0f}", bound)
                                                              : fmt::format("{}", bound);
}

// Exact where a conversion of the integer to double would round.
int compare(int64_t value, double bound) {
  constexpr double limit = 0x1p63;
  if (bound >= limit) return -1;
  if (bound < -limit) return 1;
  const auto whole = static_cast<int64_t>(std::floor(bound));
  if (value != whole) return value < whole ? -1 : 1;
  return std::floor(bound) == bound ? 0 : -1;
}

int compare(double value, double bound) {
  return value < bound ? -1 : value > bound ? 1 : 0;
}

}  // namespace

OptionRow& OptionRow::at_least(double bound) {
  lower_ = {bound, true};
  return *this;
}

OptionRow& OptionRow::above(double bound) {
  lower_ = {bound, false};
  return *this;
}

OptionRow& OptionRow::at_most(double bound) {
  upper_ = {bound, true};
  return *this;
}

OptionRow& OptionRow::below(double bound) {
  upper_ = {bound, false};
  return *this;
}

OptionRow& OptionRow::one_of(std::vector<std::string> choices) {
  choices_ = std::move(choices);
  return *this;
}

OptionRow& OptionRow::may_change() {
  may_change_ = true;
  return *this;
}

OptionRow& OptionRow::of_each_process() {
  of_each_process_ = true;
  return may_change();
}

std::string OptionRow::range() const {
  if (!choices_.empty()) return fmt::format("one of {}", fmt::join(choices_, ", "));
  std::string text;
  if (lower_)
    text = fmt::format("{} {}", lower_->inclusive ? "at least" : "above", show_bound(lower_->value));
  if (upper_) {
    if (!text.empty()) text += " and ";
    text += fmt::format("{} {}", upper_->inclusive ? "at most" : "below", show_bound(upper_->value));
  }
  return text;
}

bool OptionRow::in_range(const OptionValue& value) const {
  const auto number_fits = [this](auto number) {
    if (lower_ && compare(number, lower_->value) < (lower_->inclusive ? 0 : 1)) return false;
    if (upper_ && compare(number, upper_->value) > (upper_->inclusive ? 0 : -1)) return false;
    return true;
  };
  const auto text_fits = [this](const std::string& text) {
    return choices_.empty() || std::find(choices_.begin(), choices_.end(), text) != choices_.end();
  };
  switch (type_of(value)) {
    case OptionType::integer:
      return number_fits(std::get<int64_t>(value));
    case OptionType::number:
      return number_fits(std::get<double>(value));
    case OptionType::string:
      return text_fits(std::get<std::string>(value));
    case OptionType::integer_list:
      return std::ranges::all_of(std::get<IntegerList>(value), number_fits);
    case OptionType::string_list:
      return std::ranges::all_of(std::get<StringList>(value), text_fits);
    case OptionType::boolean:
    case OptionType::string_map:
      return true;
  }
  return false;
}

namespace {

bool holds_zero_byte(const OptionValue& value) {
  const auto in = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  if (const auto* text = std::get_if<std::string>(&value)) return in(*text);
  if (const auto* list = std::get_if<StringList>(&value)) return std::any_of(list->begin(), list->end(), in);
  if (const auto* map = std::get_if<StringMap>(&value)) {
    return std::any_of(map->begin(), map->end(), [&](const auto& entry) { return in(entry.second); });
  }
  return false;
}

}  // namespace

void OptionRow::set(const OptionValue& value, const std::string& origin) {
  const OptionType wanted = type();
  const auto hint = [this] { return fmt::format("{}: {}", name_, doc_); };
  OptionValue stored = value;
  // A whole number will do for a number, an empty list for any list.
  if (wanted == OptionType::number && type_of(value) == OptionType::integer) {
    stored = static_cast<double>(std::get<int64_t>(value));
  }
  if (wanted == OptionType::integer_list && value == OptionValue(StringList{})) stored = IntegerList{};
  if (type_of(stored) != wanted) {
    throw_user_error(fmt::format("{}: {} wants {}, not {} ({})", origin, name_, describe(wanted),
                                 describe(type_of(value)), to_toml(value)),
                     hint());
  }
  if (wanted == OptionType::number && !std::isfinite(std::get<double>(stored))) {
    throw_user_error(fmt::format("{}: {} wants a finite number, not {}", origin, name_, to_toml(value)),
                     hint());
  }
  if (holds_zero_byte(stored)) {  // would end a path early
    throw_user_error(fmt::format("{}: {} holds a zero byte", origin, name_), hint());
  }
  if (!in_range(stored)) {
    std::string message =
        fmt::format("{}: {} = {} is out of range: {}", origin, name_, to_toml(value), range());
    if (!choices_.empty())
      message = fmt::format("{}: {} = {} is not {}", origin, name_, to_toml(value), range());
    throw_user_error(message, hint());
  }
  set_(stored);
  origin_ = origin;
}

OptionRow& OptionTable::add_row(std::string name, std::string doc, std::function<OptionValue()> get,
                                std::function<void(const OptionValue&)> set) {
  ATHANOR_ASSERT(find(name) == nullptr, "option {} is declared twice", name);
  ATHANOR_ASSERT(!doc.empty() && name.find('.') != std::string::npos, "option {} has no doc or no group",
                 name);
  OptionRow& row = rows_.emplace_back();
  row.name_ = std::move(name);
  row.doc_ = std::move(doc);
  row.get_ = std::move(get);
  row.set_ = std::move(set);
  row.default_ = row.get_();
  return row;
}

void OptionTable::set_base_option(std::string name, std::string group) {
  ATHANOR_ASSERT(at(name).type() == OptionType::string && is_group(group));
  base_option_ = std::move(name);
  base_group_ = std::move(group);
}

void OptionTable::set_leading_option(std::string name, std::function<void()> apply) {
  ATHANOR_ASSERT(at(name).type() == OptionType::string);
  leading_option_ = std::move(name);
  apply_leading_ = std::move(apply);
}

const OptionRow* OptionTable::find(std::string_view name) const {
  for (const OptionRow& row : rows_) {
    if (row.name() == name) return &row;
  }
  return nullptr;
}

OptionRow* OptionTable::find(std::string_view name) {
  for (OptionRow& row : rows_) {
    if (row.name() == name) return &row;
  }
  return nullptr;
}

OptionRow& OptionTable::at(std::string_view name) {
  OptionRow* row = find(name);
  ATHANOR_ASSERT(row != nullptr, "there is no option {}", name);
  return *row;
}

std::string OptionTable::group_doc(const std::string& name) const {
  const auto found = group_docs_.find(name);
  return found == group_docs_.end() ? std::string() : found->second;
}

bool OptionTable::is_group(std::string_view name) const {
  return std::any_of(rows_.begin(), rows_.end(), [&](const OptionRow& row) {
    return row.name().size() > name.size() && row.name().starts_with(name) && row.name()[name.size()] == '.';
  });
}

std::string OptionTable::nearest(std::string_view name) const {
  constexpr size_t longest = 200;  // the distance takes time and memory in proportion to both lengths
  if (name.size() > longest) return {};
  const OptionRow* best = nullptr;
  int64_t best_distance = 0;
  for (const OptionRow& row : rows_) {
    const int64_t distance = edit_distance(name, row.name());
    if (best == nullptr || distance < best_distance) {
      best = &row;
      best_distance = distance;
    }
  }
  if (best == nullptr) return {};
  if (best_distance <= std::max<int64_t>(2, static_cast<int64_t>(name.size()) / 4)) return best->name();
  // Perhaps only the group is wrong or missing, or a whole group is meant.
  for (const OptionRow& row : rows_) {
    if (last_part(row.name()) == last_part(name)) return row.name();
  }
  std::vector<std::string> groups;
  for (const OptionRow& row : rows_) groups.push_back(row.name().substr(0, row.name().find('.')));
  return nearest_name(std::string(name), groups);
}

void OptionTable::refuse_name(std::string_view name, const std::string& origin) const {
  if (is_group(name)) {
    throw_user_error(fmt::format("{}: {} is a group of options, not an option", origin, name),
                     fmt::format("set its members, {}.NAME", name));
  }
  const std::string near = nearest(name);
  std::string shown = is_valid_utf8(name) ? std::string(name.substr(0, 200)) : "(not UTF-8)";
  throw_user_error(fmt::format("{}: there is no option {}", origin, shown),
                   near.empty() ? "docs/options.md lists them all" : fmt::format("did you mean {}?", near));
}

std::pair<std::string_view, std::string_view> split_setting(std::string_view setting) {
  const auto equals = setting.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw_user_error(
        fmt::format("--set {}: wants NAME=VALUE", is_valid_utf8(setting) ? setting : "(not UTF-8)"),
        "--set train.steps=1000");
  }
  return {setting.substr(0, equals), setting.substr(equals + 1)};
}

void OptionTable::apply_setting(std::string_view setting) {
  const auto [name, text] = split_setting(setting);
  const std::string origin = "--set";
  if (OptionRow* row = find(name)) {
    OptionValue value;
    try {
      value = parse_option_value(row->type(), text);
    } catch (const Error& error) {
      const std::string about = fmt::format("{}: {}", row->name(), row->doc());
      throw_user_error(fmt::format("{}: {} {}", origin, name, error.message()),
                       error.hint().empty() ? about : fmt::format("{} ({})", about, error.hint()));
    }
    row->set(value, origin);
    return;
  }
  // An entry of a table of strings?
  const auto dot = name.rfind('.');
  OptionRow* row = dot == std::string_view::npos ? nullptr : find(name.substr(0, dot));
  if (row == nullptr || row->type() != OptionType::string_map) refuse_name(name, origin);
  const std::string key(name.substr(dot + 1));
  if (!is_plain_name(key)) {
    throw_user_error(
        fmt::format("{}: the name of an entry of {} has letters, digits, _ and - only", origin, row->name()));
  }
  if (!is_valid_utf8(text)) throw_user_error(fmt::format("{}: {} wants a text in UTF-8", origin, name));
  auto entries = std::get<StringMap>(row->value());
  entries[key] = std::string(text);
  row->set(entries, origin);
}

}  // namespace athanor
