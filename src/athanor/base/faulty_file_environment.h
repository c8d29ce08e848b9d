// A wrapper around a file environment that goes wrong on demand: stops as if the process were killed,
// tears a write, fills the disk, reports device faults, flips a bit, is slow.
//
// Every operation that changes files is counted and logged as "KIND NAME" (create, write, sync, rename,
// sync_directory, remove, make_directories); a test first runs without faults to learn the log, then once
// for every place in it. Called by tests. Thread safety: as the wrapped environment.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"

namespace athanor {

// Thrown by the operation at which the process "dies", and by every later one. Deliberately not a
// std::exception: nothing may handle it and go on.
struct ProcessKilled {};

struct BitFlip {
  std::string name_contains;  // which files
  int64_t byte = 0;           // offset in the file
  uint8_t mask = 1;           // bits to invert
};

struct FileFaults {
  static constexpr int64_t never = -1;

  int64_t kill_at = never;        // this counted operation has no effect and kills
  bool tear = false;              // if that operation is a write, its first half takes effect
  int64_t disk_bytes = never;     // writes beyond this many bytes in all fail with ENOSPC
  bool announce_full = false;     // free_bytes() tells; otherwise somebody else filled the disk meanwhile
  int64_t fail_write_at = never;  // this write fails with EIO (counted among writes)
  int64_t fail_sync_at = never;   // this sync of a file fails with EIO (counted among syncs)
  int64_t fail_read_at = never;   // this read fails with EIO (counted among reads)
  std::optional<BitFlip> flip = std::nullopt;  // seen by reads and maps; the file itself is untouched
  std::chrono::milliseconds write_delay{0}, sync_delay{0};
};

class FaultyFileEnvironment final : public FileEnvironment {
 public:
  FaultyFileEnvironment(FileEnvironment& below, FileFaults faults)
      : below_(below), faults_(std::move(faults)) {}

  std::unique_ptr<WritableFile> create(const std::string& path, CreateOptions options) override;
  std::unique_ptr<ReadableFile> open(const std::string& path) override;
  void rename(const std::string& from, const std::string& to, RenameMode mode) override;
  void sync_directory(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  void remove(const std::string& path) override;
  void make_directories(const std::string& path) override;
  std::optional<FileStatus> status(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;

  std::vector<std::string> log() const;
  bool killed() const { return killed_.load(); }

 private:
  friend class FaultyWritableFile;
  friend class FaultyReadableFile;

  void require_alive() const {
    if (killed_.load()) throw ProcessKilled{};
  }
  // Counts an operation; true if it is the one that kills.
  bool count(const char* kind, const std::string& path);
  void count_or_die(const char* kind, const std::string& path);

  FileEnvironment& below_;
  const FileFaults faults_;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::atomic<bool> killed_{false};
  std::atomic<int64_t> writes_{0}, syncs_{0}, reads_{0}, bytes_written_{0};
};

}  // namespace athanor
