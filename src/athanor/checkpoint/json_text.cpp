#include "athanor/checkpoint/json_text.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& path, std::string_view kind, const std::string& reason) {
  throw_user_error(fmt::format("'{}': {}", path, reason), fmt::format("{} is a file of JSON in UTF-8", kind));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& path, std::string_view kind) {
  constexpr int deepest = 32;
  // The parser would take a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) refuse(path, kind, "it has a NUL byte");
  std::vector<std::set<std::string>> names;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= deepest) refuse(path, kind, fmt::format("it is nested deeper than {} levels", deepest));
        names.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        names.pop_back();
        break;
      case Json::parse_event_t::key:
        if (const auto& name = value.get_ref<const std::string&>(); !names.back().insert(name).second) {
          refuse(path, kind, fmt::format("'{}' comes twice", name.substr(0, 100)));
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::parse_error& error) {
    refuse(path, kind, fmt::format("it is not JSON at byte {}", error.byte));
  } catch (const Json::exception& error) {
    refuse(path, kind, error.what());
  }
}

Json read_json(FileEnvironment& files, const std::string& path, int64_t max_bytes, std::string_view kind) {
  return parse_json(read_file(files, path, max_bytes), path, kind);
}

}  // namespace athanor
