#include "athanor/train/interrupt.h"

#include <csignal>

#include "athanor/base/clock.h"

namespace athanor {

namespace {

// Signal handlers can reach nothing but objects of static storage; they are reset by each Interrupts.
volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t save_requested = 0;
using SignalAction = struct sigaction;
SignalAction previous[3];
constexpr int signals[3] = {SIGINT, SIGTERM, SIGUSR1};

extern "C" void on_signal(int number) {
  if (number == SIGUSR1) {
    save_requested = 1;
  } else {
    if (stop_signal != 0 && number == SIGINT) {  // asked twice: end now, as without a handler
      std::signal(number, SIG_DFL);
      std::raise(number);
    }
    stop_signal = number;
  }
}

}  // namespace

Interrupts::Interrupts(double wall_time_seconds) {
  if (wall_time_seconds > 0) deadline_ns_ = monotonic_ns() + static_cast<int64_t>(wall_time_seconds * 1e9);
  stop_signal = 0;
  save_requested = 0;
  for (int i = 0; i < 3; ++i) {
    SignalAction action{};
    action.sa_handler = &on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(signals[i], &action, &previous[i]);
  }
}

Interrupts::~Interrupts() {
  for (int i = 0; i < 3; ++i) sigaction(signals[i], &previous[i], nullptr);
}

std::string Interrupts::stop_reason() const {
  if (stop_signal == SIGINT) return "interrupted";
  if (stop_signal == SIGTERM) return "terminated";
  if (deadline_ns_ > 0 && monotonic_ns() >= deadline_ns_) return "wall-time limit reached";
  return {};
}

bool Interrupts::take_save_request() {
  if (save_requested == 0) return false;
  save_requested = 0;
  return true;
}

}  // namespace athanor
