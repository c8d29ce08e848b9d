#include "athanor/train/stop_text.h"

#include <algorithm>
#include <utility>

namespace athanor {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopText::append(std::string_view piece) {
  if (ended_) return {};
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    ended_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  // The longest end that is the beginning of a stop text waits for more.
  size_t waiting = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > waiting; --length) {
      if (std::string_view(held_).substr(held_.size() - length) == std::string_view(stop).substr(0, length))
        waiting = length;
    }
  }
  std::string ready = held_.substr(0, held_.size() - waiting);
  held_.erase(0, ready.size());
  return ready;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace athanor
