// What every target asks of a reader: it takes the input, or refuses it as a user is refused.
//
// Included by the targets of this folder. Thread safety: one thread.
#pragma once

#include <functional>

#include "athanor/base/error.h"

// Lets user errors with a hint pass, and nothing else.
inline void unless_refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const athanor::Error& error) {
    ATHANOR_ASSERT(error.kind() == athanor::ErrorKind::user);
    ATHANOR_ASSERT(!error.hint().empty());
  }
}
