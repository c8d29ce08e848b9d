#include "athanor/device/queued_device.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/device/signal.h"

namespace athanor {

// A ring that one thread fills and the stream's own thread empties. An entry is a task or a wait for an
// event.
class QueuedStream final : public Stream {
 public:
  QueuedStream(QueuedDevice& device, int32_t index, const std::string& name, int threads, int cores)
      : device_(device), index_(index), team_(threads, cores) {
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      throw_user_error(fmt::format("cannot start the thread of stream '{}': {}", name, error.what()),
                       "raise the limit on processes (ulimit -u)");
    }
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }

  void enqueue(const Task& task) override {
    ATHANOR_ASSERT(task.run != nullptr, "a task without a function");
    push({task, monotonic_ns(), nullptr, 0});
    ++tasks_enqueued_;
  }

  void wait(Event event) override {
    if (event.sequence == 0) return;
    QueuedStream& other = device_.stream(event.stream);
    if (&other == this) {
      ATHANOR_ASSERT(event.sequence <= tasks_enqueued_, "a stream waits for its own future");
      return;
    }
    // An entry even if the event has been reached: it brings the time at which that was.
    push({Task{}, 0, &other, event.sequence});
  }

  Event record() override { return {index_, tasks_enqueued_}; }

  void synchronize() override {
    drain();
    device_.rethrow_error();
  }

  // Blocks until everything enqueued before the call has been passed.
  void drain() {
    const uint64_t until = filled_.load(std::memory_order_acquire);
    drained_.wait(false, [&] { return emptied_.load(std::memory_order_seq_cst) >= until; });
  }

  // Called when the device stops, of all streams before any is joined and of all before any is destroyed:
  // they wait for each other.
  void wake() {
    work_.notify();
    progress_.notify();
    drained_.notify();
  }
  void join() { thread_.join(); }

 private:
  struct Entry {
    Task task;
    int64_t enqueued_ns = 0;
    QueuedStream* awaited = nullptr;
    uint64_t sequence = 0;
  };
  static constexpr uint64_t capacity = 4096;

  void push(const Entry& entry) {
    const uint64_t position = filled_.load(std::memory_order_relaxed);
    if (position - emptied_.load(std::memory_order_acquire) == capacity)
      progress_.wait(false, [&] { return position - emptied_.load(std::memory_order_seq_cst) < capacity; });
    entries_[position % capacity] = entry;
    filled_.store(position + 1, std::memory_order_seq_cst);
    work_.notify();
  }

  void serve() {
    prctl(PR_SET_TIMERSLACK, 1000);  // the default, 50 us, is longer than many tasks
    int64_t ready_ns = 0;
    for (uint64_t position = 0;; ++position) {
      work_.wait(false,
                 [&] { return filled_.load(std::memory_order_seq_cst) > position || device_.stopping(); });
      if (filled_.load(std::memory_order_acquire) <= position) return;
      const Entry& entry = entries_[position % capacity];
      if (entry.awaited != nullptr) {
        ready_ns = std::max(ready_ns, entry.awaited->wait_until_reached(entry.sequence));
      } else {
        ready_ns = perform(entry, std::max(ready_ns, entry.enqueued_ns));
      }
      emptied_.store(position + 1, std::memory_order_seq_cst);
      progress_.notify();
      // Whoever waits for all of it is left asleep until then: woken for each short task it would take a core
      // from the team.
      if (position + 1 == filled_.load(std::memory_order_seq_cst)) drained_.notify();
    }
  }

  // Returns when the task ended.
  int64_t perform(const Entry& entry, int64_t ready_ns) {
    TimeSpan span{ready_ns, ready_ns};
    if (!device_.passes_over()) {
      try {
        span = device_.perform_(entry.task, team_, ready_ns);
        if (entry.task.span != nullptr) *entry.task.span = span;
      } catch (...) {
        device_.fail(std::current_exception());
      }
    }
    const uint64_t ended = tasks_ended_.load(std::memory_order_relaxed) + 1;
    end_times_[ended % end_times_.size()].store(span.end_ns, std::memory_order_relaxed);
    tasks_ended_.store(ended, std::memory_order_seq_cst);
    return span.end_ns;
  }

  // Called by another stream's thread. Returns when the event was reached, 0 if that is long ago.
  int64_t wait_until_reached(uint64_t sequence) {
    progress_.wait(false, [&] {
      return tasks_ended_.load(std::memory_order_seq_cst) >= sequence || device_.stopping();
    });
    const int64_t time = end_times_[sequence % end_times_.size()].load(std::memory_order_relaxed);
    // Another task may have taken the place while it was read.
    const uint64_t ended = tasks_ended_.load(std::memory_order_acquire);
    return ended < sequence || ended - sequence >= end_times_.size() - 1 ? 0 : time;
  }

  QueuedDevice& device_;
  const int32_t index_;
  ThreadTeam team_;
  uint64_t tasks_enqueued_ = 0;
  std::array<Entry, capacity> entries_{};
  alignas(64) std::atomic<uint64_t> filled_{0};
  Signal work_;
  alignas(64) std::atomic<uint64_t> emptied_{0}, tasks_ended_{0};
  Signal progress_, drained_;
  std::array<std::atomic<int64_t>, 1024> end_times_{};
  std::thread thread_;
};

QueuedDevice::QueuedDevice(Perform perform, int cores, int most_team_threads)
    : perform_(perform), cores_(cores), most_team_threads_(most_team_threads) {}

QueuedDevice::~QueuedDevice() {
  stopping_.store(true, std::memory_order_seq_cst);
  for (const auto& stream : streams_) stream->wake();
  for (const auto& stream : streams_) stream->join();
}

Stream& QueuedDevice::create_stream(std::string name, int threads) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<int32_t>(streams_.size());
  streams_.reserve(streams_.size() + 1);
  streams_.push_back(
      std::make_unique<QueuedStream>(*this, index, name, std::min(threads, most_team_threads_), cores_));
  return *streams_.back();
}

QueuedStream& QueuedDevice::stream(int32_t index) {
  const std::lock_guard lock(mutex_);
  ATHANOR_ASSERT(index >= 0 && static_cast<size_t>(index) < streams_.size(), "no stream {}", index);
  return *streams_[static_cast<size_t>(index)];
}

void QueuedDevice::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void QueuedDevice::rethrow_error() {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::vector<QueuedStream*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) all.push_back(stream.get());
  }
  for (QueuedStream* stream : all) stream->drain();
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
    failed_.store(false, std::memory_order_release);
  }
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<std::byte> QueuedDevice::allocate(int64_t bytes) {
  ATHANOR_ASSERT(bytes >= 0, "{} bytes", bytes);
  const auto physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  constexpr int64_t huge_page = int64_t{2} << 20;
  const auto length = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = MAP_FAILED;
  // The system may promise more than it has and kill the process later; refuse what cannot be kept.
  if (bytes <= physical)
    data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw_user_error(
        fmt::format("not enough memory: {} bytes ({:.2f} GiB) asked for, the machine has {:.2f} GiB", bytes,
                    static_cast<double>(bytes) / (1 << 30), static_cast<double>(physical) / (1 << 30)),
        "use a smaller model, micro-batch or sequence, or recomputation");
  if (bytes >= huge_page) madvise(data, length, MADV_HUGEPAGE);  // a hint: fewer TLB misses in large products
  return {static_cast<std::byte*>(data), [length](std::byte* pointer) { munmap(pointer, length); }};
}

}  // namespace athanor
