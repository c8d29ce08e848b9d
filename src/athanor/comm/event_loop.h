// One thread that waits for many descriptors.
//
// Called by host_transport.h for what happens beside a rank's collectives: peers that die, connections, the
// heartbeat. Thread safety: post from any thread; everything else, and all callbacks, in the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "athanor/comm/shared_memory.h"

namespace athanor {

class EventLoop {
 public:
  // `tick` is called about every `tick_ns`.
  EventLoop(const std::string& name, int64_t tick_ns, std::function<void()> tick);
  ~EventLoop();  // ends the thread; what was posted and has not run is dropped
  void post(std::function<void()> work);

  // `ready` gets the epoll events of the descriptor. It may watch, change and forget any.
  void watch(int descriptor, uint32_t events, std::function<void(uint32_t)> ready);
  void forget(int descriptor);
  // From any thread, while it is being watched.
  void change(int descriptor, uint32_t events);

 private:
  void run();
  void run_posted();

  const int64_t tick_ns_;
  const std::function<void()> tick_;
  Descriptor epoll_, wake_;
  std::map<int, std::shared_ptr<std::function<void(uint32_t)>>> watched_;
  std::mutex mutex_;  // guards posted_ and stop_
  std::vector<std::function<void()>> posted_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace athanor
