#include "athanor/base/faulty_file_environment.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

class FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(FaultyFileEnvironment& owner, std::unique_ptr<WritableFile> below, std::string path,
                     int64_t expected_bytes)
      : owner_(owner), below_(std::move(below)), path_(std::move(path)), expected_(expected_bytes) {}

  void append(std::span<const std::byte> bytes) override { write_at(size(), bytes); }

  void write_at(int64_t offset, std::span<const std::byte> bytes) override {
    const FileFaults& faults = owner_.faults_;
    if (owner_.count("write", path_)) {
      if (faults.tear) below_->write_at(offset, bytes.first(bytes.size() / 2));
      throw ProcessKilled{};
    }
    std::this_thread::sleep_for(faults.write_delay);
    const auto size = static_cast<int64_t>(bytes.size());
    if (owner_.writes_++ == faults.fail_write_at) {
      throw_file_error("write", path_, EIO, describe_write(offset, size, expected_));
    }
    const int64_t before = owner_.bytes_written_.fetch_add(size);
    if (faults.disk_bytes != FileFaults::never && before + size > faults.disk_bytes) {
      const int64_t fits = std::max<int64_t>(0, faults.disk_bytes - before);
      below_->write_at(offset, bytes.first(static_cast<size_t>(fits)));
      throw_file_error("write", path_, ENOSPC, describe_write(offset + fits, size - fits, expected_));
    }
    below_->write_at(offset, bytes);
  }

  int64_t size() const override { return below_->size(); }

  void sync() override {
    owner_.count_or_die("sync", path_);
    std::this_thread::sleep_for(owner_.faults_.sync_delay);
    if (owner_.syncs_++ == owner_.faults_.fail_sync_at) throw_file_error("sync", path_, EIO);
    below_->sync();
  }

  void close() override {
    owner_.require_alive();
    below_->close();
  }

 private:
  FaultyFileEnvironment& owner_;
  std::unique_ptr<WritableFile> below_;
  std::string path_;
  int64_t expected_;
};

namespace {

class FlippedMap final : public MappedFile {
 public:
  explicit FlippedMap(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

class FaultyReadableFile final : public ReadableFile {
 public:
  FaultyReadableFile(FaultyFileEnvironment& owner, std::unique_ptr<ReadableFile> below, std::string path)
      : owner_(owner), below_(std::move(below)), path_(std::move(path)) {}

  int64_t size() const override { return below_->size(); }

  void read_at(int64_t offset, std::span<std::byte> out) const override {
    owner_.require_alive();
    if (owner_.reads_++ == owner_.faults_.fail_read_at) {
      throw_file_error("read", path_, EIO, fmt::format("at byte {}", offset));
    }
    below_->read_at(offset, out);
    flip(offset, out);
  }

  std::shared_ptr<const MappedFile> map() const override {
    owner_.require_alive();
    if (!flips()) return below_->map();
    const auto original = below_->map();
    std::vector<std::byte> copy(original->bytes().begin(), original->bytes().end());
    flip(0, copy);
    return std::make_shared<FlippedMap>(std::move(copy));
  }

 private:
  bool flips() const {
    const auto& wanted = owner_.faults_.flip;
    return wanted && path_.find(wanted->name_contains) != std::string::npos;
  }
  void flip(int64_t offset, std::span<std::byte> bytes) const {
    if (!flips()) return;
    const int64_t place = owner_.faults_.flip->byte - offset;
    if (place < 0 || place >= static_cast<int64_t>(bytes.size())) return;
    bytes[static_cast<size_t>(place)] ^= static_cast<std::byte>(owner_.faults_.flip->mask);
  }

  FaultyFileEnvironment& owner_;
  std::unique_ptr<ReadableFile> below_;
  std::string path_;
};

bool FaultyFileEnvironment::count(const char* kind, const std::string& path) {
  require_alive();
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<int64_t>(log_.size());
  const size_t slash = path.rfind('/');
  log_.push_back(fmt::format("{} {}", kind, slash == std::string::npos ? path : path.substr(slash + 1)));
  if (index == faults_.kill_at) killed_.store(true);
  return index == faults_.kill_at;
}

void FaultyFileEnvironment::count_or_die(const char* kind, const std::string& path) {
  if (count(kind, path)) throw ProcessKilled{};
}

std::vector<std::string> FaultyFileEnvironment::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

std::unique_ptr<WritableFile> FaultyFileEnvironment::create(const std::string& path, CreateOptions options) {
  count_or_die("create", path);
  return std::make_unique<FaultyWritableFile>(*this, below_.create(path, options), path,
                                              options.expected_bytes);
}

std::unique_ptr<ReadableFile> FaultyFileEnvironment::open(const std::string& path) {
  require_alive();
  return std::make_unique<FaultyReadableFile>(*this, below_.open(path), path);
}

void FaultyFileEnvironment::rename(const std::string& from, const std::string& to, RenameMode mode) {
  count_or_die("rename", to);
  below_.rename(from, to, mode);
}

void FaultyFileEnvironment::sync_directory(const std::string& path) {
  count_or_die("sync_directory", path);
  below_.sync_directory(path);
}

std::vector<std::string> FaultyFileEnvironment::list(const std::string& path) {
  require_alive();
  return below_.list(path);
}

void FaultyFileEnvironment::remove(const std::string& path) {
  count_or_die("remove", path);
  below_.remove(path);
}

void FaultyFileEnvironment::make_directories(const std::string& path) {
  count_or_die("make_directories", path);
  below_.make_directories(path);
}

std::optional<FileStatus> FaultyFileEnvironment::status(const std::string& path) {
  require_alive();
  return below_.status(path);
}

int64_t FaultyFileEnvironment::free_bytes(const std::string& path) {
  require_alive();
  if (faults_.disk_bytes == FileFaults::never || !faults_.announce_full) return below_.free_bytes(path);
  return std::max<int64_t>(0, faults_.disk_bytes - bytes_written_.load());
}

}  // namespace athanor
