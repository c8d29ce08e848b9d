// Finds added tokens in text as it is written.
//
// Called by Tokenizer. Thread safety: never changes; any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

// The leftmost occurrence first, of those that begin at one place the longest.
class AddedTokenMatcher {
 public:
  static constexpr size_t longest_content = 1024;  // bytes; the time of a search grows with it

  void add(std::string_view content, int32_t id, bool left_strip, bool right_strip);
  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return longest_; }

  struct Match {
    size_t begin = 0, end = 0;
    int32_t id = 0;
  };
  // The first occurrence at or after `from`, with the white space it takes along; none before `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;
  // Whether some occurrence begins at or before `position` and ends at or after it.
  bool touches(std::string_view text, size_t position) const;

 private:
  struct Node {
    std::map<uint8_t, uint32_t> next;
    int32_t token = -1;  // place in tokens_
  };
  struct Token {
    int32_t id;
    bool left_strip, right_strip;
  };
  // The longest token that begins at `position`: its place in tokens_ and its end.
  std::optional<std::pair<size_t, size_t>> longest_at(std::string_view text, size_t position) const;

  std::vector<Node> nodes_{1};
  std::vector<Token> tokens_;
  std::array<bool, 256> begins_{};  // by byte
  size_t longest_ = 0;
};

}  // namespace athanor
