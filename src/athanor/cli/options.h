// The option table: every option of the program, one row each.
//
// A row binds a dotted name to a field of a room's plain options struct, with its doc, its range or
// choices, and whether it may change when a run is resumed. The field's value at the time of binding is
// the default. Everything else is derived from the rows: reading TOML files and `--set` (option_files.h),
// help, docs, the resolved configuration, its comparison on resume (option_docs.h).
//
//   table.add("train.learning_rate", options.train.learning_rate, "Peak learning
//   rate.").above(0).may_change();
//
// The table points into the options struct, which must outlive it and stay where it is.
// Called by the commands of `cli`. Thread safety: one thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/cli/option_value.h"

namespace athanor {

class OptionRow {
 public:
  // --- declaring; each returns the row, so that calls chain -------------------------------------------
  OptionRow& at_least(double bound);  // value >= bound; of a list: each item
  OptionRow& above(double bound);     // value > bound
  OptionRow& at_most(double bound);
  OptionRow& below(double bound);
  OptionRow& one_of(std::vector<std::string> choices);  // of a list: each item
  OptionRow& may_change();                              // when a run is resumed
  OptionRow& of_each_process();  // no part of the run: where its processes are, which may differ

  // --- reading ----------------------------------------------------------------------------------------
  const std::string& name() const { return name_; }
  const std::string& doc() const { return doc_; }
  OptionType type() const { return type_of(default_); }
  const OptionValue& default_value() const { return default_; }
  OptionValue value() const { return get_(); }
  bool may_change_on_resume() const { return may_change_; }
  bool is_of_each_process() const { return of_each_process_; }
  // Where the value comes from: "default", "FILE:LINE" or "--set".
  const std::string& origin() const { return origin_; }
  // "at least 1", "above 0 and below 1", "one of a, b"; empty: anything of the type.
  std::string range() const;

  // Checks and stores. Throws Error (user): "WHERE: NAME = VALUE ...", with the doc as hint.
  void set(const OptionValue& value, const std::string& origin);

 private:
  friend class OptionTable;
  struct Bound {
    double value;
    bool inclusive;
  };
  bool in_range(const OptionValue& value) const;

  std::string name_, doc_, origin_ = "default";
  OptionValue default_;
  std::optional<Bound> lower_, upper_;
  std::vector<std::string> choices_;
  bool may_change_ = false, of_each_process_ = false;
  std::function<OptionValue()> get_;
  std::function<void(const OptionValue&)> set_;
};

class OptionTable {
 public:
  // A sentence about the options NAME.*, for help and docs.
  void describe_group(std::string name, std::string doc) { group_docs_[std::move(name)] = std::move(doc); }
  std::string group_doc(const std::string& name) const;

  // Binds a field of one of the types of OptionValue, or of any integer type (whose limits then bound the
  // range) or float.
  template <typename Field>
  OptionRow& add(std::string name, Field& field, std::string doc) {
    using Stored = StoredType<Field>;
    OptionRow& row = add_row(
        std::move(name), std::move(doc), [&field] { return OptionValue(static_cast<Stored>(field)); },
        [&field](const OptionValue& value) { field = static_cast<Field>(std::get<Stored>(value)); });
    if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool>) {
      // Values are kept as int64_t: of a uint64_t (a seed) the lower half of the range can be given.
      if constexpr (sizeof(Field) == 8 && std::is_unsigned_v<Field>) row.at_least(0);
      if constexpr (sizeof(Field) < 8) {
        row.at_least(static_cast<double>(std::numeric_limits<Field>::min()));
        row.at_most(static_cast<double>(std::numeric_limits<Field>::max()));
      }
    }
    return row;
  }

  // Binds an enumeration through the names of its values.
  template <typename Enumeration>
  OptionRow& add_choice(std::string name, Enumeration& field,
                        const std::vector<std::pair<std::string, Enumeration>>& choices, std::string doc) {
    std::vector<std::string> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    const auto get = [&field, choices] {
      for (const auto& choice : choices) {
        if (choice.second == field) return OptionValue(choice.first);
      }
      ATHANOR_ASSERT(false, "an enumeration has a value without a name");
    };
    const auto set = [&field, choices](const OptionValue& value) {
      for (const auto& choice : choices) {
        if (choice.first == std::get<std::string>(value)) field = choice.second;
      }
    };
    return add_row(std::move(name), std::move(doc), get, set).one_of(std::move(names));
  }

  // Declares that the string option `name` names a file whose values lie beneath those of the group
  // `group` ("model"): see option_files.h. The option itself is no part of the resolved configuration.
  void set_base_option(std::string name, std::string group);
  const std::string& base_option() const { return base_option_; }
  const std::string& base_group() const { return base_group_; }

  // Declares that the string option `name` decides the defaults of others, as a model family does: its
  // value is found in all layers and stored before any other option is, then `apply` is called.
  void set_leading_option(std::string name, std::function<void()> apply);
  const std::string& leading_option() const { return leading_option_; }
  void apply_leading_option() const { apply_leading_(); }

  // In order of declaration.
  const std::deque<OptionRow>& rows() const { return rows_; }

  OptionRow* find(std::string_view name);
  const OptionRow* find(std::string_view name) const;
  OptionRow& at(std::string_view name);  // it must exist

  // True if some option's name begins with "NAME.".
  bool is_group(std::string_view name) const;

  // The existing name nearest to a wrong one: by edit distance, or with the same last part; empty if none
  // is near.
  std::string nearest(std::string_view name) const;

  // Throws the error for a name that does not exist, with the nearest one in the hint.
  [[noreturn]] void refuse_name(std::string_view name, const std::string& origin) const;

  // One `--set` argument, "NAME=VALUE", or "TABLE.KEY=VALUE" for an entry of a table of strings.
  void apply_setting(std::string_view setting);

 private:
  template <typename Field>
  using StoredType = std::conditional_t<
      std::is_same_v<Field, bool>, bool,
      std::conditional_t<std::is_integral_v<Field>, int64_t,
                         std::conditional_t<std::is_floating_point_v<Field>, double, Field>>>;

  OptionRow& add_row(std::string name, std::string doc, std::function<OptionValue()> get,
                     std::function<void(const OptionValue&)> set);

  std::deque<OptionRow> rows_;  // a deque, so that rows stay where they are
  std::map<std::string, std::string> group_docs_;
  std::string base_option_, base_group_, leading_option_;
  std::function<void()> apply_leading_;
};

// Splits "NAME=VALUE" at the first '='; throws Error (user) if there is none or no name before it.
std::pair<std::string_view, std::string_view> split_setting(std::string_view setting);

}  // namespace athanor
