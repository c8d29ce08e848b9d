#include "athanor/ir/text_scanner.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "athanor/base/error.h"

namespace athanor {

namespace {

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.{}/+-").find(c) != std::string_view::npos;
}

bool is_bare(std::string_view name) {
  return !name.empty() && std::string_view("}/+-.").find(name.front()) == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_bare(c); });
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::string quoted_if_needed(std::string_view name) {
  if (is_bare(name)) return std::string(name);
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + '"';
}

std::optional<std::string> unquoted(std::string_view text) {
  if (is_bare(text)) return std::string(text);
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') return std::nullopt;
    if (text[i] != '\\') {
      name += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (text[i] != '"' && text[i] != '\\' && text[i] != 'n') return std::nullopt;
    name += text[i] == 'n' ? '\n' : text[i];
  }
  return name;
}

bool TextScanner::next_line() {
  while (!text_.empty()) {
    const size_t end = std::min(text_.find('\n'), text_.size());
    line_ = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++line_number_;
    skip_blanks();
    if (!line_.empty()) return true;
  }
  line_ = {};
  return false;
}

void TextScanner::skip_blanks() {
  while (!line_.empty() && is_blank(line_.front())) line_.remove_prefix(1);
}

bool TextScanner::at_end() {
  skip_blanks();
  return line_.empty();
}

bool TextScanner::next_is(std::string_view symbol) {
  skip_blanks();
  return line_.starts_with(symbol);
}

bool TextScanner::accept(std::string_view symbol) {
  if (!next_is(symbol)) return false;
  line_.remove_prefix(symbol.size());
  return true;
}

void TextScanner::expect(std::string_view symbol) {
  if (!accept(symbol)) fail(fmt::format("'{}' is expected before '{}'", symbol, line_.substr(0, 40)));
}

std::string_view TextScanner::word() {
  skip_blanks();
  size_t end = 0;
  bool in_quotes = false;
  int depth = 0;
  for (; end < line_.size(); ++end) {
    const char c = line_[end];
    if (in_quotes) {
      if (c == '\\') ++end;
      if (c == '"') in_quotes = false;
      continue;
    }
    if (c == '"') in_quotes = true;
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth <= 0 && (is_blank(c) || std::string_view(",:()=").find(c) != std::string_view::npos)) break;
  }
  end = std::min(end, line_.size());
  if (end == 0) fail(fmt::format("a word is missing before '{}'", line_.substr(0, 40)));
  const std::string_view result = line_.substr(0, end);
  line_.remove_prefix(end);
  return result;
}

std::string TextScanner::name() {
  const std::string_view text = word();
  auto result = unquoted(text);
  if (!result) fail(fmt::format("'{}' is not a name", text));
  return *std::move(result);
}

std::string_view TextScanner::through(std::string_view symbol) {
  skip_blanks();
  const size_t at = line_.find(symbol);
  if (at == std::string_view::npos)
    fail(fmt::format("'{}' is expected after '{}'", symbol, line_.substr(0, 40)));
  const std::string_view result = line_.substr(0, at + symbol.size());
  line_.remove_prefix(result.size());
  return result;
}

int64_t TextScanner::integer() {
  const std::string_view text = word();
  int64_t value = 0;
  if (!parse_number(text, value)) fail(fmt::format("'{}' is not an integer", text));
  return value;
}

double TextScanner::number() {
  const std::string_view text = word();
  double value = 0;
  if (!parse_number(text, value)) fail(fmt::format("'{}' is not a number", text));
  return value;
}

void TextScanner::end_line() {
  if (!at_end()) fail(fmt::format("'{}' is left over", line_.substr(0, 40)));
}

void TextScanner::fail(const std::string& problem) const {
  throw_user_error(fmt::format("{}, line {}: {}", what_, line_number_, problem));
}

}  // namespace athanor
