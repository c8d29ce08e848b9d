// A file system in memory that knows what would survive a power failure: for tests of everything that
// must be durable.
//
// A file's contents survive as of its last `sync()`, a name (and its absence) as of the last
// `sync_directory()` of its folder. `crash()` throws the rest away. Called by tests. Thread safety: all
// functions may be called from several threads, `crash()` when nobody else is at work.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"

namespace athanor {

// What a crash takes. The first is a killed process on a machine that lives on, the last is the worst
// that a power failure may do; the middle one is what common file systems do to a renamed file whose
// contents were never synced.
enum class CrashLoss : uint8_t { nothing, contents_not_synced, everything_not_synced };

class MemoryFileEnvironment final : public FileEnvironment {
 public:
  MemoryFileEnvironment();

  std::unique_ptr<WritableFile> create(const std::string& path, CreateOptions options) override;
  std::unique_ptr<ReadableFile> open(const std::string& path) override;
  void rename(const std::string& from, const std::string& to, RenameMode mode) override;
  void sync_directory(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  void remove(const std::string& path) override;
  void make_directories(const std::string& path) override;
  std::optional<FileStatus> status(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;

  void crash(CrashLoss loss);

  // What the files hold: contents shared by handles and names, so that an open file outlives its name.
  struct Contents {
    std::mutex mutex;
    std::vector<std::byte> now, synced;
    int64_t modified_ns = 0;
  };

 private:
  using Names = std::map<std::string, std::shared_ptr<Contents>>;

  std::mutex mutex_;
  Names names_, synced_names_;
  std::set<std::string> directories_;
  int64_t clock_ = 0;
};

}  // namespace athanor
