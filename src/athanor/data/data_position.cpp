#include "athanor/data/data_position.h"

#include <charconv>
#include <limits>
#include <type_traits>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr std::string_view first_line = "data_position 1\n";

// The one list of fields: written, parsed and compared in this order.
template <class Position, class Visit>
void for_each_field(Position& position, Visit&& visit) {
  visit("consumed_samples", position.consumed_samples);
  visit("data_identity", position.data_identity);
  visit("first_token", position.range.begin);
  visit("end_token", position.range.end);
  visit("sequence_length", position.sequence_length);
  visit("seed", position.seed);
  visit("shuffle", position.shuffle);
}

[[noreturn]] void refuse(std::string_view text) {
  throw_user_error(fmt::format("the saved data position cannot be read near '{}'", text.substr(0, 60)),
                   "the checkpoint was written by another version or is damaged");
}

}  // namespace

DataPosition position_in(const SampleSet& samples, int64_t consumed_samples) {
  const Sampler& sampler = samples.sampler();
  return {.consumed_samples = consumed_samples,
          .data_identity = samples.tokens().identity(),
          .range = sampler.range(),
          .sequence_length = sampler.sequence_length(),
          .seed = sampler.options().seed,
          .shuffle = sampler.options().shuffle};
}

std::string to_text(const DataPosition& position) {
  std::string text(first_line);
  for_each_field(position, [&](std::string_view name, const auto& value) {
    text += fmt::format("{} {}\n", name, +value);
  });
  return text;
}

DataPosition parse_data_position(std::string_view text) {
  DataPosition position;
  const std::string_view whole = text;
  if (!text.starts_with(first_line)) refuse(text);
  text.remove_prefix(first_line.size());
  for_each_field(position, [&]<class T>(std::string_view name, T& value) {
    if (!text.starts_with(name) || text.size() <= name.size() || text[name.size()] != ' ') refuse(text);
    const std::string_view number = text.substr(name.size() + 1, text.find('\n') - name.size() - 1);
    int64_t parsed = 0;
    uint64_t parsed_unsigned = 0;
    const char* begin = number.data();
    const char* end = begin + number.size();
    const auto result = std::is_same_v<T, uint64_t> ? std::from_chars(begin, end, parsed_unsigned)
                                                    : std::from_chars(begin, end, parsed);
    if (number.empty() || result.ec != std::errc{} || result.ptr != end) refuse(text);
    const bool in_range = std::is_same_v<T, uint64_t> ||
                          (parsed >= 0 && static_cast<uint64_t>(parsed) <=
                                              static_cast<uint64_t>(std::numeric_limits<T>::max()));
    if (!in_range || text.size() <= name.size() + 1 + number.size()) refuse(text);
    value = std::is_same_v<T, uint64_t> ? static_cast<T>(parsed_unsigned) : static_cast<T>(parsed);
    text.remove_prefix(name.size() + 1 + number.size() + 1);
  });
  if (!text.empty() || to_text(position) != whole) refuse(whole);
  return position;
}

int64_t resume_from(const DataPosition& saved, const SampleSet& samples) {
  DataPosition now = position_in(samples, saved.consumed_samples);
  std::vector<std::string> values;
  for_each_field(saved,
                 [&](std::string_view, const auto& value) { values.push_back(fmt::format("{}", +value)); });
  std::string differences;
  size_t field = 0;
  for_each_field(now, [&](std::string_view name, const auto& value) {
    const std::string text = fmt::format("{}", +value);
    if (text != values[field])
      differences += fmt::format("\n  {}: saved {}, now {}", name, values[field], text);
    ++field;
  });
  if (!differences.empty()) {
    throw_user_error(fmt::format("the run was saved with other data or another order of it:{}", differences),
                     "resume with the same data files, seed and sequence length, or begin a new run");
  }
  return saved.consumed_samples;
}

}  // namespace athanor
