#include "athanor/cli/option_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "athanor/base/error.h"

namespace athanor {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Quotes what the user typed so that control characters and endless texts do no harm in a message.
std::string shown(std::string_view text) {
  constexpr size_t longest = 60;
  if (!is_valid_utf8(text)) return "a text that is not UTF-8";
  if (text.size() <= longest) return quote_toml(text);
  size_t cut = longest;
  while ((static_cast<uint8_t>(text[cut]) & 0xC0u) == 0x80u) --cut;  // not inside a character
  return quote_toml(text.substr(0, cut)) + "...";
}

bool parse_bool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  throw_user_error(fmt::format("wants true or false, not {}", shown(text)));
}

// Drops underscores between digits and a plus sign in front.
std::string without_separators(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between_digits =
        i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    const bool plus = i == 0 && text[i] == '+' && text.size() > 1 && text[1] != '-';
    if (!plus && !(text[i] == '_' && between_digits)) digits += text[i];
  }
  return digits;
}

int64_t parse_integer(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    throw_user_error(fmt::format("wants a whole number, {}: {}", why, shown(text)),
                     "such as 2000, 1_000_000, 20k, 5M or 2G");
  };
  std::string_view rest = trimmed(text);
  int64_t factor = 1;
  if (!rest.empty()) {
    switch (rest.back()) {
      case 'k':
        factor = 1'000;
        break;
      case 'M':
        factor = 1'000'000;
        break;
      case 'G':
        factor = 1'000'000'000;
        break;
      default:
        break;
    }
    if (factor != 1) rest.remove_suffix(1);
  }
  const std::string digits = without_separators(rest);
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, code] = std::from_chars(digits.data(), end, value);
  if (code == std::errc::result_out_of_range) refuse("and this one does not fit in 64 bits");
  if (code != std::errc() || stop != end) refuse("and this is none");
  if (value > std::numeric_limits<int64_t>::max() / factor ||
      value < std::numeric_limits<int64_t>::min() / factor) {
    refuse("and this one does not fit in 64 bits");
  }
  return value * factor;
}

double parse_number(std::string_view text) {
  const std::string digits = without_separators(trimmed(text));
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, code] = std::from_chars(digits.data(), end, value);
  if (code == std::errc::result_out_of_range || (code == std::errc() && !std::isfinite(value))) {
    throw_user_error(fmt::format("wants a finite number, not {}", shown(text)));
  }
  if (code != std::errc() || stop != end) {
    throw_user_error(fmt::format("wants a number, and this is none: {}", shown(text)),
                     "such as 3, 0.1 or 6e-4");
  }
  return value;
}

std::string parse_string(std::string_view text) {
  if (!is_valid_utf8(text)) throw_user_error("wants a text in UTF-8, and this is none");
  return std::string(text);
}

template <typename Each>
void for_each_part(std::string_view text, const Each& each) {
  if (trimmed(text).empty()) return;
  for (;;) {
    const auto comma = text.find(',');
    each(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

template <typename List, typename Print>
std::string bracketed(const List& list, const Print& print) {
  std::string text = "[";
  for (const auto& item : list) {
    if (text.size() > 1) text += ", ";
    text += print(item);
  }
  return text + "]";
}

struct TomlPrinter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    std::string text = fmt::format("{}", value);  // the shortest text that reads back to the same bits
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string& value) const { return quote_toml(value); }
  std::string operator()(const IntegerList& value) const { return bracketed(value, *this); }
  std::string operator()(const StringList& value) const { return bracketed(value, *this); }
  std::string operator()(const StringMap& value) const {
    std::string text = "{";
    for (const auto& [key, item] : value) {
      text += text.size() > 1 ? ", " : " ";
      text += (is_plain_name(key) ? key : quote_toml(key)) + " = " + quote_toml(item);
    }
    return text + (value.empty() ? "}" : " }");
  }
};

}  // namespace

OptionType type_of(const OptionValue& value) {
  return static_cast<OptionType>(value.index());
}

std::string_view describe(OptionType type) {
  switch (type) {
    case OptionType::boolean:
      return "true or false";
    case OptionType::integer:
      return "a whole number";
    case OptionType::number:
      return "a number";
    case OptionType::string:
      return "a string";
    case OptionType::integer_list:
      return "a list of whole numbers";
    case OptionType::string_list:
      return "a list of strings";
    case OptionType::string_map:
      return "a table of strings";
  }
  return "a value";
}

std::string_view short_name(OptionType type) {
  switch (type) {
    case OptionType::boolean:
      return "bool";
    case OptionType::integer:
      return "int";
    case OptionType::number:
      return "float";
    case OptionType::string:
      return "string";
    case OptionType::integer_list:
      return "list of int";
    case OptionType::string_list:
      return "list of string";
    case OptionType::string_map:
      return "table of string";
  }
  return "?";
}

OptionValue parse_option_value(OptionType type, std::string_view text) {
  switch (type) {
    case OptionType::boolean:
      return parse_bool(trimmed(text));
    case OptionType::integer:
      return parse_integer(text);
    case OptionType::number:
      return parse_number(text);
    case OptionType::string:
      return parse_string(text);
    case OptionType::integer_list: {
      IntegerList list;
      for_each_part(text, [&](std::string_view part) { list.push_back(parse_integer(part)); });
      return list;
    }
    case OptionType::string_list: {
      StringList list;
      for_each_part(text, [&](std::string_view part) { list.push_back(parse_string(part)); });
      return list;
    }
    case OptionType::string_map:
      break;
  }
  throw_user_error("is a table: set its entries one by one", "--set TABLE.NAME=VALUE");
}

std::string to_toml(const OptionValue& value) {
  return std::visit(TomlPrinter{}, value);
}

std::string quote_toml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default: {
        const auto byte = static_cast<uint8_t>(c);
        if (byte < 0x20 || byte == 0x7F) {
          quoted += fmt::format("\\u{:04X}", byte);
        } else {
          quoted += c;
        }
      }
    }
  }
  return quoted + '"';
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
  });
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const uint32_t lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80           ? 1
                          : (lead >> 5) == 0x6  ? 2
                          : (lead >> 4) == 0xE  ? 3
                          : (lead >> 3) == 0x1E ? 4
                                                : 0;
    if (length == 0 || text.size() - i < length) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const uint32_t byte = static_cast<uint8_t>(text[i + k]);
      if ((byte & 0xC0u) != 0x80u) return false;
      code = (code << 6) | (byte & 0x3Fu);
    }
    // Overlong forms, surrogates and what lies beyond Unicode.
    constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < smallest[length] || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return false;
    i += length;
  }
  return true;
}

}  // namespace athanor
