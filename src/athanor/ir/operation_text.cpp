#include <fmt/core.h>

#include <charconv>
#include <variant>

#include "athanor/ir/operation.h"
#include "athanor/ir/text_scanner.h"

namespace athanor {

namespace {

using Member = std::variant<double Attributes::*, int64_t Attributes::*, bool Attributes::*,
                            Activation Attributes::*, std::string Attributes::*, Axis Attributes::*,
                            int32_t Attributes::*, Placement Attributes::*>;

struct FieldRow {
  Field field;
  std::string_view name;
  Member member;
};

// Every attribute, once: printing and parsing are a loop over these rows.
constexpr FieldRow field_rows[] = {
    {Field::epsilon, "epsilon", &Attributes::epsilon},
    {Field::scale, "scale", &Attributes::scale},
    {Field::probability, "probability", &Attributes::probability},
    {Field::theta, "theta", &Attributes::theta},
    {Field::rope_factor, "rope_factor", &Attributes::rope_factor},
    {Field::rope_low, "rope_low", &Attributes::rope_low},
    {Field::rope_high, "rope_high", &Attributes::rope_high},
    {Field::rope_original, "rope_original", &Attributes::rope_original},
    {Field::inverse, "inverse", &Attributes::inverse},
    {Field::window, "window", &Attributes::window},
    {Field::label_smoothing, "label_smoothing", &Attributes::label_smoothing},
    {Field::z_loss, "z_loss", &Attributes::z_loss},
    {Field::soft_cap, "soft_cap", &Attributes::soft_cap},
    {Field::offset, "offset", &Attributes::offset},
    {Field::region, "region", &Attributes::region},
    {Field::table, "table", &Attributes::table},
    {Field::activation, "activation", &Attributes::activation},
    {Field::beta1, "beta1", &Attributes::beta1},
    {Field::beta2, "beta2", &Attributes::beta2},
    {Field::momentum, "momentum", &Attributes::momentum},
    {Field::maximum_norm, "maximum_norm", &Attributes::maximum_norm},
    {Field::average_decay, "average_decay", &Attributes::average_decay},
    {Field::trust_low, "trust_low", &Attributes::trust_low},
    {Field::trust_high, "trust_high", &Attributes::trust_high},
    {Field::nesterov, "nesterov", &Attributes::nesterov},
    {Field::axis, "axis", &Attributes::axis},
    {Field::ranks, "ranks", &Attributes::ranks},
    {Field::from, "from", &Attributes::from},
    {Field::to, "to", &Attributes::to},
    {Field::extent, "extent", &Attributes::extent},
    {Field::name, "name", &Attributes::name},
};

constexpr std::string_view activation_names[] = {"none", "gelu"};

// Doubles in the shortest form that reads back to the same bits.
std::string value_text(double value) {
  return fmt::format("{}", value);
}
std::string value_text(int64_t value) {
  return fmt::format("{}", value);
}
std::string value_text(bool value) {
  return value ? "true" : "false";
}
std::string value_text(Activation value) {
  return std::string(activation_names[static_cast<size_t>(value)]);
}
std::string value_text(const std::string& value) {
  return quoted_if_needed(value);
}
std::string value_text(int32_t value) {
  return fmt::format("{}", value);
}
std::string value_text(Axis value) {
  return name_of(value);
}
std::string value_text(const Placement& value) {
  return quoted_if_needed(to_text(value));
}

template <class Number>
bool parse_value(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}
bool parse_value(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool parse_value(std::string_view text, Activation& value) {
  for (size_t i = 0; i < std::size(activation_names); ++i) {
    if (activation_names[i] != text) continue;
    value = static_cast<Activation>(i);
    return true;
  }
  return false;
}
bool parse_value(std::string_view text, Axis& value) {
  const auto parsed = parse_axis(text);
  if (parsed) value = *parsed;
  return parsed.has_value();
}
bool parse_value(std::string_view text, Placement& value) {
  const auto inner = unquoted(text);
  const auto parsed = inner ? parse_placement(*inner) : std::nullopt;
  if (parsed) value = *parsed;
  return parsed.has_value();
}
bool parse_value(std::string_view text, std::string& value) {
  const auto parsed = unquoted(text);
  if (parsed) value = *parsed;
  return parsed.has_value();
}

}  // namespace

std::string to_text(const Attributes& attributes, FieldMask mask) {
  static const Attributes defaults;
  std::string text;
  for (const FieldRow& row : field_rows) {
    if ((mask & mask_of(row.field)) == 0) continue;
    std::visit(
        [&](auto member) {
          if (attributes.*member == defaults.*member) return;
          text += fmt::format("{}{}={}", text.empty() ? "" : " ", row.name, value_text(attributes.*member));
        },
        row.member);
  }
  return text;
}

bool parse_attribute(std::string_view field, std::string_view value, Attributes& attributes) {
  for (const FieldRow& row : field_rows) {
    if (row.name != field) continue;
    return std::visit([&](auto member) { return parse_value(value, attributes.*member); }, row.member);
  }
  return false;
}

}  // namespace athanor
