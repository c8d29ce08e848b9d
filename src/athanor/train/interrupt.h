// Signals and the wall-time limit, as the training loop asks for them between steps.
//
// SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) ask for a save and a clean end, SIGUSR1
// for a save. A second SIGINT ends at once.
// Thread safety: signal handlers are process-wide; one Interrupts exists at a time. The functions may be
// called from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace athanor {

// Ignores SIGPIPE as long as it lives: a run outlives the reader of its output.
class ClosedPipesIgnored {
 public:
  ClosedPipesIgnored();
  ~ClosedPipesIgnored();
  ClosedPipesIgnored(const ClosedPipesIgnored&) = delete;
  ClosedPipesIgnored& operator=(const ClosedPipesIgnored&) = delete;
};

class Interrupts {
 public:
  // The limit counts from `begun_ns` of the monotonic clock; 0 seconds: no limit.
  Interrupts(double wall_time_seconds, int64_t begun_ns);
  ~Interrupts();  // restores the handlers that were there
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Why the run should end, or nothing.
  std::string stop_reason() const;
  // True once after each SIGUSR1.
  bool take_save_request() const;

 private:
  int64_t deadline_ns_ = 0;
};

}  // namespace athanor
