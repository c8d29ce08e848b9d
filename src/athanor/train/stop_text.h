// Ends a text before the first of some stop texts, as it comes in pieces.
//
// Called by whoever generates text. Thread safety: one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class StopText {
 public:
  // Empty stop texts are none.
  explicit StopText(std::vector<std::string> stops);

  // What of the text so far can be passed on now: all but what may be the beginning of a stop text. When one
  // is complete, what stands before it, and ended() is true from then on.
  std::string append(std::string_view piece);
  bool ended() const { return ended_; }
  // The rest, when the text ends without a stop text.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool ended_ = false;
};

}  // namespace athanor
