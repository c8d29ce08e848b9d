// Reads and writes the words of the text forms of the `ir` and `program` rooms.
//
// Called by graph_text.cpp and operation_text.cpp. Thread safety: a scanner belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace athanor {

// Names print bare when they hold letters, digits and _ . { } / + - only and begin with one of the first two
// or with _ or {, else between quotes with \" \\ and \n escaped. `unquoted` takes either form, and is nothing
// when the text is neither.
std::string quoted_if_needed(std::string_view name);
std::optional<std::string> unquoted(std::string_view text);

// Walks through a text line by line, word by word. What does not fit is a user error that names the line.
class TextScanner {
 public:
  TextScanner(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  bool next_line();                       // goes to the next line that is not blank; false at the end
  bool at_end();                          // of the line
  bool next_is(std::string_view symbol);  // skips blanks
  bool accept(std::string_view symbol);   // skips blanks, then `symbol` if it is there
  void expect(std::string_view symbol);
  std::string_view word();  // up to a blank or one of , : ( ) = outside of quotes and brackets; not empty
  std::string name();       // a bare or quoted name
  std::string_view through(std::string_view symbol);  // everything up to and with `symbol`
  int64_t integer();
  double number();
  void end_line();  // refuses anything that is left
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  void skip_blanks();
  std::string_view text_, what_, line_;
  int64_t line_number_ = 0;
};

}  // namespace athanor
