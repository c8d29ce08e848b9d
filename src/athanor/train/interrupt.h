// Signals and the wall-time limit, as the training loop asks for them between steps.
//
// SIGINT and SIGTERM ask for a save and a clean end, SIGUSR1 for a save. A second SIGINT ends at once.
// Thread safety: signal handlers are process-wide; one Interrupts exists at a time.
#pragma once

#include <cstdint>
#include <string>

namespace athanor {

class Interrupts {
 public:
  // wall_time_seconds from now; 0: no limit.
  explicit Interrupts(double wall_time_seconds);
  ~Interrupts();  // restores the handlers that were there
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Why the run should end, or nothing.
  std::string stop_reason() const;
  // True once after each SIGUSR1.
  bool take_save_request();

 private:
  int64_t deadline_ns_ = 0;
};

}  // namespace athanor
