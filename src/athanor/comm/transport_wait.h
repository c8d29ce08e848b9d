// Waiting for something that a peer does.
//
// Called by interpreter.cpp. Thread safety: for the thread of the rank's collectives.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "athanor/base/clock.h"
#include "athanor/comm/transport.h"

namespace athanor {

// How waiting ends that did not bring what was waited for.
enum class WaitEnd : uint8_t { ready, timed_out };

// Spins for a short while where the transport allows it, lets others run for a while, then sleeps. Time in
// which this process was stopped (by a scheduler that suspends jobs, say) is added to the deadline. Throws
// what check() throws.
template <class Ready>
WaitEnd wait_until(Transport& transport, int64_t& deadline_ns, Ready&& ready) {
  if (ready()) return WaitEnd::ready;
  if (transport.spin_ns() > 0) {
    const int64_t until = monotonic_ns() + transport.spin_ns();
    while (monotonic_ns() < until)
      for (int i = 0; i < 64; ++i)
        if (ready()) return WaitEnd::ready;
  }
  // Where others of this job want the core, a yield is a switch to them and costs a microsecond; waking a
  // sleeper takes tens. On a machine that is busy with other things, each yield may take milliseconds.
  constexpr int64_t yielding_ns = 200'000;
  const int64_t yield_until = monotonic_ns() + yielding_ns;
  while (true) {
    transport.progress();
    if (ready()) return WaitEnd::ready;
    if (monotonic_ns() < yield_until) {
      sched_yield();
      continue;
    }
    transport.check();
    const int64_t now = monotonic_ns();
    if (now >= deadline_ns) return WaitEnd::timed_out;
    RankBoard& board = transport.board();
    const uint32_t count = board.bell.lie_down();
    transport.progress();
    const int64_t until_ns = std::min(deadline_ns, now + 1'000'000'000);
    if (!ready() && board.alarm() < 0) board.bell.sleep(count, until_ns);
    board.bell.get_up();
    if (const int64_t woken = monotonic_ns(); woken - until_ns > stopped_ns) deadline_ns += woken - now;
  }
}

}  // namespace athanor
