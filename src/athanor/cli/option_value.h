// The values that options can have, and their text forms.
//
// Called by the option table and its readers and writers. Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace athanor {

using IntegerList = std::vector<int64_t>;
using StringList = std::vector<std::string>;
using StringMap = std::map<std::string, std::string>;  // keys chosen by the user

using OptionValue = std::variant<bool, int64_t, double, std::string, IntegerList, StringList, StringMap>;

// In the order of the alternatives of OptionValue.
enum class OptionType : uint8_t { boolean, integer, number, string, integer_list, string_list, string_map };

OptionType type_of(const OptionValue& value);

// "true or false", "a whole number", ...: completes "wants ...".
std::string_view describe(OptionType type);

// "bool", "int", "float", "string", "list of int", "list of string", "table of string".
std::string_view short_name(OptionType type);

// Reads the text of a command-line setting as `type`. Whole numbers take underscores between digits and a
// suffix k, M or G (thousand, million, billion); lists are comma-separated, the empty text is the empty
// list; strings are taken as they are. Not for string_map. Throws Error (user) that says what was wrong
// without naming the option; callers put the name in front.
OptionValue parse_option_value(OptionType type, std::string_view text);

// The value as TOML: 1, 0.5, "text", [1, 2], { a = "x" }. Reads back to the same value, bit for bit.
std::string to_toml(const OptionValue& value);

// A TOML basic string with quotes.
std::string quote_toml(std::string_view text);

// True for names that need no quotes in TOML and are fit for file and metric names: letters, digits, _ and -.
bool is_plain_name(std::string_view name);

bool is_valid_utf8(std::string_view text);

}  // namespace athanor
