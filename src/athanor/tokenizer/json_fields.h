// Fields of JSON files of tokenizers, with errors that name file and field.
//
// Called by readers of these files, which alone include nlohmann/json: it takes seconds to compile. Thread
// safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

using Json = nlohmann::json;

// Text for an error message: the beginning, if it is long.
std::string shortened(std::string text);

class JsonFields {
 public:
  explicit JsonFields(std::string path);  // of the file, for messages

  // Error (user) about the file.
  [[noreturn]] void refuse(
      const std::string& what,
      const std::string& hint = "the file is damaged, or another than it is taken for") const;
  [[noreturn]] void unsupported(const std::string& what) const;

  Json parse(std::string_view text) const;
  // Null if the field is missing or null. What should be an object and is none is refused.
  const Json* find(const Json& object, const char* name) const;
  // With `missing`, the field may be missing or null.
  std::string string(const Json& object, const char* name, const char* missing = nullptr) const;
  bool boolean(const Json& object, const char* name, bool missing) const;
  // The id of the token `content`.
  int32_t id(const Json& value, const std::string& content) const;
  // The component in a field; if it is a Sequence, those of its field `list`, in order.
  std::vector<const Json*> components(const Json& object, const char* name, const char* list) const;
  std::string type_of(const Json& component) const { return string(component, "type"); }

 private:
  void add_components(const Json& value, const char* name, const char* list, int depth,
                      std::vector<const Json*>& found) const;

  std::string path_;
};

}  // namespace athanor
