// What the ranks of a run decide together, so that none goes another way than the others.
//
// Called by the training loop, on all ranks in the same order. Thread safety: one thread.
#pragma once

#include <optional>
#include <string>

#include "athanor/base/error.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/train/engine.h"

namespace athanor {

// Between steps: the first rank's reason to stop of those that have one (empty: go on), and whether anyone
// was asked for a save.
struct Requests {
  std::string stop_reason;
  bool save = false;
};
Requests agree(RankMessages& messages, const Requests& own);

// What the rank that found it first in the order of the step found, in words; empty if none did.
std::string agree_on_non_finite(RankMessages& messages, const std::optional<NonFinite>& found);

// User error on every rank, naming the rank, where `text` is not that of rank 0. `what` is what it says.
void require_same(RankMessages& messages, const std::string& what, const std::string& text);

// Throws, on every rank, an error that all of them have found alike. None leaves before all have: otherwise
// those that are still reading what it was found by would report that a rank has gone.
[[noreturn]] void throw_on_all(RankMessages& messages, const Error& error);

}  // namespace athanor
