// The body of wait_until, see transport.h.
#pragma once

#include <sched.h>

#include <algorithm>

#include "athanor/base/clock.h"
#include "athanor/comm/transport.h"

namespace athanor {

template <class Ready>
WaitEnd wait_until(Transport& transport, int64_t deadline_ns, Ready&& ready) {
  if (ready()) return WaitEnd::ready;
  if (transport.spin_ns() > 0) {
    const int64_t until = monotonic_ns() + transport.spin_ns();
    while (monotonic_ns() < until)
      for (int i = 0; i < 64; ++i)
        if (ready()) return WaitEnd::ready;
  }
  // Where others want the core, a yield is a switch to them and costs a microsecond; where nobody does, all
  // of them take some tens of microseconds. Waking a sleeper takes as long.
  constexpr int yields = 200;
  for (int i = 0;; ++i) {
    transport.progress();
    if (ready()) return WaitEnd::ready;
    if (i < yields) {
      sched_yield();
      continue;
    }
    transport.check();
    const int64_t now = monotonic_ns();
    if (now >= deadline_ns) return WaitEnd::timed_out;
    RankBoard& board = transport.board();
    const uint32_t count = board.bell.lie_down();
    transport.progress();
    if (!ready() && board.alarm() < 0) board.bell.sleep(count, std::min(deadline_ns, now + 1'000'000'000));
    board.bell.get_up();
  }
}

}  // namespace athanor
