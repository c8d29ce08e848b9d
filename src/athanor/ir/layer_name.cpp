#include "athanor/ir/layer_name.h"

#include <string_view>

namespace athanor {

std::string fill_layer(std::string text, int64_t layer) {
  constexpr std::string_view mark = "{layer}";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
    text.replace(at, mark.size(), std::to_string(layer));
  }
  return text;
}

}  // namespace athanor
