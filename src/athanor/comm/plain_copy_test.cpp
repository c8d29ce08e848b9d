#include "athanor/comm/plain_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace athanor {
namespace {

// From and to any place within a line, of lengths short and long.
TEST(PlainCopy, CopiesWhatItIsGivenAndNothingElse) {
  constexpr size_t most = (2 << 20) + 300;
  std::vector<std::byte> from(most + 200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761U >> 24);
  constexpr std::byte untouched{0xee};
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{512 << 10}, (size_t{512} << 10) + 1,
                             (size_t{1} << 20) - 3, most})
    for (const size_t from_offset : {size_t{0}, size_t{4}, size_t{61}})
      for (const size_t to_offset : {size_t{0}, size_t{1}, size_t{36}, size_t{64}}) {
        std::vector<std::byte> to(most + 200, untouched);
        plain_copy(to.data() + to_offset, from.data() + from_offset, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= to_offset && i < to_offset + bytes;
          const std::byte expected = inside ? from[i - to_offset + from_offset] : untouched;
          if (to[i] != expected)
            FAIL() << bytes << " bytes from " << from_offset << " to " << to_offset << ", at " << i;
        }
      }
}

}  // namespace
}  // namespace athanor
