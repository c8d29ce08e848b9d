// For tests of all rooms: what an action is refused with.
//
// Included by `*_test.cpp` only. Thread safety: one thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "athanor/base/error.h"

namespace athanor {

// The whole text of the user error that `action` ends with. The test fails where there is none, or one of
// another kind or without a hint.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace athanor
