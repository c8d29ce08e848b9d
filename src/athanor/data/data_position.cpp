#include "athanor/data/data_position.h"

#include <charconv>
#include <limits>
#include <type_traits>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr std::string_view first_line = "data_position 1\n", first_line_of_mix = "data_position 2\n";
constexpr std::string_view single_name = "train", single_weight = "1";

// The one list of fields of each version: written and parsed in this order.
template <class Position, class Source, class Visit>
void for_each_single_field(Position& position, Source& source, Visit&& visit) {
  visit("consumed_samples", position.consumed_samples);
  visit("data_identity", source.identity);
  visit("first_token", source.range.begin);
  visit("end_token", source.range.end);
  visit("sequence_length", position.sequence_length);
  visit("seed", position.seed);
  visit("shuffle", position.shuffle);
}

template <class Position, class Visit>
void for_each_mix_field(Position& position, Visit&& visit) {
  visit("consumed_samples", position.consumed_samples);
  visit("sequence_length", position.sequence_length);
  visit("seed", position.seed);
  visit("shuffle", position.shuffle);
  visit("packed", position.packed);
  visit("mix_begin", position.mix_begin);
}

template <class Source, class Visit>
void for_each_source_field(Source& source, Visit&& visit) {
  visit("source", source.name);
  visit("weight", source.weight);
  visit("data_identity", source.identity);
  visit("first_token", source.range.begin);
  visit("end_token", source.range.end);
  visit("before", source.before);
  visit("drawn", source.drawn);
}

bool is_single(const DataPosition& position) {
  if (position.sources.size() != 1 || position.packed || position.mix_begin != 0) return false;
  const SourcePosition& source = position.sources.front();
  return source.name == single_name && source.weight == single_weight && source.before == 0 &&
         source.drawn == position.consumed_samples;
}

[[noreturn]] void refuse(std::string_view text) {
  throw_user_error(fmt::format("the saved data position cannot be read near '{}'", text.substr(0, 60)),
                   "the checkpoint was written by another version or is damaged");
}

// Takes "NAME VALUE\n" lines off the front of a text.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  bool at_end() const { return text_.empty(); }
  template <class T>
  void operator()(std::string_view name, T& value) {
    const size_t end = text_.find('\n');
    if (!text_.starts_with(name) || text_.size() <= name.size() || text_[name.size()] != ' ' ||
        end == std::string_view::npos) {
      refuse(text_);
    }
    const std::string_view word = text_.substr(name.size() + 1, end - name.size() - 1);
    parse(word, value);
    text_.remove_prefix(end + 1);
  }

 private:
  static void parse(std::string_view word, std::string& value) { value = word; }
  template <class T>
  static void parse(std::string_view word, T& value) {
    using Number = std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>;
    Number number = 0;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool in_range = std::is_same_v<T, uint64_t> ||
                          (number >= 0 && static_cast<uint64_t>(number) <=
                                              static_cast<uint64_t>(std::numeric_limits<T>::max()));
    if (word.empty() || result.ec != std::errc{} || result.ptr != word.data() + word.size() || !in_range)
      refuse(word);
    value = static_cast<T>(number);
  }

  std::string_view text_;
};

}  // namespace

std::string to_text(const DataPosition& position) {
  const bool single = is_single(position);
  std::string text(single ? first_line : first_line_of_mix);
  const auto write = [&]<class T>(std::string_view name, const T& value) {
    if constexpr (std::is_same_v<T, std::string>)
      text += fmt::format("{} {}\n", name, value);
    else
      text += fmt::format("{} {}\n", name, +value);
  };
  if (single) {
    for_each_single_field(position, position.sources.front(), write);
  } else {
    for_each_mix_field(position, write);
    for (const SourcePosition& source : position.sources) for_each_source_field(source, write);
  }
  return text;
}

DataPosition parse_data_position(std::string_view text) {
  DataPosition position;
  if (text.starts_with(first_line)) {
    SourcePosition source{.name = std::string(single_name), .weight = std::string(single_weight)};
    Reader read(text.substr(first_line.size()));
    for_each_single_field(position, source, read);
    source.drawn = position.consumed_samples;
    position.sources.push_back(std::move(source));
  } else if (text.starts_with(first_line_of_mix)) {
    Reader read(text.substr(first_line_of_mix.size()));
    for_each_mix_field(position, read);
    while (!read.at_end()) for_each_source_field(position.sources.emplace_back(), read);
  }
  if (to_text(position) != text) refuse(text);
  return position;
}

}  // namespace athanor
