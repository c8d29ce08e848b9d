#include "athanor/comm/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"

namespace athanor {

EventLoop::EventLoop(const std::string& name, int64_t tick_ns, std::function<void()> tick)
    : tick_ns_(tick_ns),
      tick_(std::move(tick)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_.is_open() || !wake_.is_open())
    throw_user_error(fmt::format("cannot watch descriptors: {}", std::strerror(errno)),
                     "raise the limit on open files (ulimit -n)");
  watch(wake_.number(), EPOLLIN, [this](uint32_t) { run_posted(); });
  // Signals are for those who wait for them, in the threads of the process that do.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw_user_error(fmt::format("cannot start a thread: {}", error.what()),
                     "raise the limit on processes (ulimit -u)");
  }
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

EventLoop::~EventLoop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  post([] {});
  thread_.join();
}

void EventLoop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  const uint64_t one = 1;
  (void)!write(wake_.number(), &one, sizeof one);  // it can only be full, and then the loop is awake
}

void EventLoop::watch(int descriptor, uint32_t events, std::function<void(uint32_t)> ready) {
  watched_[descriptor] = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0)
    throw Error(ErrorKind::restart_worker,
                fmt::format("cannot watch a descriptor: {}", std::strerror(errno)));
}

void EventLoop::change(int descriptor, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  epoll_ctl(epoll_.number(), EPOLL_CTL_MOD, descriptor, &event);  // fails only when it is no longer watched
}

void EventLoop::forget(int descriptor) {
  if (watched_.erase(descriptor) > 0) epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void EventLoop::run_posted() {
  uint64_t count = 0;
  (void)!read(wake_.number(), &count, sizeof count);
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
    if (stop_) return;
  }
  for (const auto& each : work) each();
}

void EventLoop::run() {
  int64_t next_tick = monotonic_ns() + tick_ns_;
  std::array<epoll_event, 64> events{};
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    const int64_t left = std::max<int64_t>(0, next_tick - monotonic_ns());
    const int count = epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>((left + 999'999) / 1'000'000));
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      // One of those before may have ended this one.
      const auto found = watched_.find(event.data.fd);
      if (found == watched_.end()) continue;
      const auto ready = found->second;
      (*ready)(event.events);
    }
    if (monotonic_ns() >= next_tick) {
      tick_();
      next_tick = monotonic_ns() + tick_ns_;
    }
  }
}

}  // namespace athanor
