#include "athanor/train/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

#include "athanor/base/clock.h"

namespace athanor {

namespace {

// Signal handlers can reach nothing but objects of static storage; they are reset by each Interrupts. A
// signal may arrive on any thread.
std::atomic<int> stop_signal{0};
std::atomic<bool> save_requested{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

using SignalAction = struct sigaction;
constexpr std::array<int, 4> signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};
std::array<SignalAction, signals.size()> previous;
SignalAction previous_pipe;

extern "C" void on_signal(int number) {
  if (number == SIGUSR1) {
    save_requested = true;
  } else if (stop_signal != 0 && number == SIGINT) {  // asked twice: end now, as without a handler
    std::signal(number, SIG_DFL);
    std::raise(number);
  } else {
    stop_signal = number;
  }
}

}  // namespace

ClosedPipesIgnored::ClosedPipesIgnored() {
  SignalAction action{};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &previous_pipe);
}

ClosedPipesIgnored::~ClosedPipesIgnored() {
  sigaction(SIGPIPE, &previous_pipe, nullptr);
}

Interrupts::Interrupts(double wall_time_seconds, int64_t begun_ns) {
  if (wall_time_seconds > 0) deadline_ns_ = begun_ns + static_cast<int64_t>(wall_time_seconds * 1e9);
  stop_signal = 0;
  save_requested = false;
  for (size_t i = 0; i < signals.size(); ++i) {
    sigaction(signals[i], nullptr, &previous[i]);
    if (signals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;
    SignalAction action{};
    action.sa_handler = &on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(signals[i], &action, nullptr);
  }
}

Interrupts::~Interrupts() {
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous[i], nullptr);
}

std::string Interrupts::stop_reason() const {
  switch (stop_signal) {
    case SIGINT:
      return "interrupted";
    case SIGTERM:
      return "terminated";
    case SIGHUP:
      return "the terminal was closed";
    default:
      break;
  }
  if (deadline_ns_ > 0 && monotonic_ns() >= deadline_ns_) return "wall-time limit reached";
  return {};
}

bool Interrupts::take_save_request() const {
  return save_requested.exchange(false);
}

}  // namespace athanor
