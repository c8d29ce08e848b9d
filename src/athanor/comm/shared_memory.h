// Memory that other processes of the host can map: memory files, which no name in a file system leads to and
// which go with their last process.
//
// Called by host_transport.cpp. Thread safety: registries from any thread; mappings are values of their
// owner. A peer opens a file by way of /proc/PID/fd/NUMBER, which the system allows to processes of the same
// user.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "athanor/comm/mailbox.h"

namespace athanor {

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close();

 private:
  int number_ = -1;
};

// A mapped stretch of a file.
class Mapping {
 public:
  Mapping() = default;
  // Throws a user error when the system refuses.
  Mapping(const Descriptor& file, uint64_t offset, uint64_t bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

Descriptor create_memory_file(const char* name, uint64_t bytes);
// Empty if it cannot be opened: the process is gone, or of another user.
std::optional<Descriptor> open_memory_file(pid_t process, int number);
uint64_t size_of_file(const Descriptor& file);

// The regions of one rank, as its peers see them. Lies in shared memory; all zero is empty.
struct RegionTable {
  static constexpr uint32_t places = 1024;
  struct Entry {
    std::atomic<uint32_t> region{0};  // its number while it exists, else 0
    std::atomic<int32_t> file{0};
    std::atomic<uint64_t> bytes{0};
  };
  std::array<Entry, places> entries;
};

// Hands out memory and knows where it lies.
class RegionRegistry : public std::enable_shared_from_this<RegionRegistry> {
 public:
  // `keep_alive` owns `table`.
  RegionRegistry(RegionTable& table, std::shared_ptr<void> keep_alive)
      : table_(table), keep_alive_(std::move(keep_alive)) {}
  std::shared_ptr<std::byte> allocate(int64_t bytes);
  std::optional<SharedPlace> find(const std::byte* data, uint64_t bytes) const;

 private:
  struct PlanRegion {
    uint32_t number = 0;
    Descriptor file;
    Mapping mapping;
  };
  void release(const std::byte* data);

  RegionTable& table_;
  std::shared_ptr<void> keep_alive_;
  mutable std::mutex mutex_;
  uint32_t versions_ = 0;
  std::map<const std::byte*, PlanRegion> regions_;  // by address
};

// The regions of a peer, mapped when they are first used.
class PeerRegions {
 public:
  PeerRegions(const RegionTable& table, int rank, pid_t process)
      : table_(table), rank_(rank), process_(process) {}
  // Throws a restart_worker error if there are no such bytes.
  const std::byte* resolve(SharedPlace place, uint64_t bytes);

 private:
  struct Known {
    uint32_t number = 0;
    Mapping mapping;
  };
  const RegionTable& table_;
  const int rank_;
  const pid_t process_;
  std::map<uint32_t, Known> known_;  // by place in the table
};

}  // namespace athanor
