#include "athanor/tokenizer/json_fields.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/base/json_depth.h"

namespace athanor {

std::string shortened(std::string text) {
  constexpr size_t longest = 200;
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

JsonFields::JsonFields(std::string path) : path_(std::move(path)) {}

void JsonFields::refuse(const std::string& what, const std::string& hint) const {
  throw_user_error(fmt::format("{}: {}", path_, what), hint);
}

void JsonFields::unsupported(const std::string& what) const {
  refuse(what + " is not supported", "it would change the ids, so it is not left out");
}

Json JsonFields::parse(std::string_view text) const {
  if (json_is_deeper_than(text, deepest_json)) {
    refuse(fmt::format("is nested deeper than {} levels", deepest_json));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    refuse(fmt::format("is no JSON ({})", shortened(error.what())));
  }
}

const Json* JsonFields::find(const Json& object, const char* name) const {
  if (!object.is_object()) refuse(fmt::format("there should be an object with a field \"{}\"", name));
  const auto place = object.find(name);
  return place == object.end() || place->is_null() ? nullptr : &*place;
}

std::string JsonFields::string(const Json& object, const char* name, const char* missing) const {
  const Json* value = find(object, name);
  if (value == nullptr && missing != nullptr) return missing;
  if (value == nullptr || !value->is_string()) refuse(fmt::format("\"{}\" should be a string", name));
  return value->get<std::string>();
}

bool JsonFields::boolean(const Json& object, const char* name, bool missing) const {
  const Json* value = find(object, name);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) refuse(fmt::format("\"{}\" should be true or false", name));
  return value->get<bool>();
}

int32_t JsonFields::id(const Json& value, const std::string& content) const {
  constexpr int64_t largest = (int64_t{1} << 31) - 2;
  if (!value.is_number_integer() || value < 0 || value > largest) {
    refuse(fmt::format("the id of the token \"{}\" should be a whole number from 0 to {}", shortened(content),
                       largest));
  }
  return value.get<int32_t>();
}

std::vector<const Json*> JsonFields::components(const Json& object, const char* name,
                                                const char* list) const {
  std::vector<const Json*> found;
  if (const Json* value = find(object, name)) add_components(*value, name, list, 0, found);
  return found;
}

void JsonFields::add_components(const Json& value, const char* name, const char* list, int depth,
                                std::vector<const Json*>& found) const {
  if (type_of(value) != "Sequence") return found.push_back(&value);
  const Json* parts = find(value, list);
  if (parts == nullptr || !parts->is_array() || depth > 8) {
    refuse(fmt::format("the Sequence of \"{}\" should have a list \"{}\"", name, list));
  }
  for (const Json& part : *parts) add_components(part, name, list, depth + 1, found);
}

}  // namespace athanor
