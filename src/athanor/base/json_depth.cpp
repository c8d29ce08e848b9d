#include "athanor/base/json_depth.h"

#include <cstddef>

namespace athanor {

bool json_is_deeper_than(std::string_view text, int levels) {
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '[':
      case '{':
        if (++depth > levels) return true;
        break;
      case ']':
      case '}':
        --depth;
        break;
      case '"':  // brackets in strings do not count
        for (++at; at < text.size() && text[at] != '"'; ++at) {
          if (text[at] == '\\') ++at;
        }
        break;
      default:
        break;
    }
  }
  return false;
}

}  // namespace athanor
