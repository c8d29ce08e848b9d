#include "athanor/base/memory_file_environment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

using Contents = MemoryFileEnvironment::Contents;

class MemoryWritableFile final : public WritableFile {
 public:
  explicit MemoryWritableFile(std::shared_ptr<Contents> contents) : contents_(std::move(contents)) {}

  void append(std::span<const std::byte> bytes) override { write_at(size(), bytes); }
  void write_at(int64_t offset, std::span<const std::byte> bytes) override {
    ATHANOR_ASSERT(offset >= 0);
    if (bytes.empty()) return;
    const std::lock_guard lock(contents_->mutex);
    auto& now = contents_->now;
    const auto begin = static_cast<size_t>(offset);
    now.resize(std::max(now.size(), begin + bytes.size()));
    std::memcpy(now.data() + begin, bytes.data(), bytes.size());
  }
  int64_t size() const override {
    const std::lock_guard lock(contents_->mutex);
    return static_cast<int64_t>(contents_->now.size());
  }
  void sync() override {
    const std::lock_guard lock(contents_->mutex);
    contents_->synced = contents_->now;
  }
  void close() override {}

 private:
  std::shared_ptr<Contents> contents_;
};

class MemoryMap final : public MappedFile {
 public:
  explicit MemoryMap(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class MemoryReadableFile final : public ReadableFile {
 public:
  MemoryReadableFile(std::shared_ptr<Contents> contents, std::string path)
      : contents_(std::move(contents)), path_(std::move(path)) {
    const std::lock_guard lock(contents_->mutex);
    size_ = static_cast<int64_t>(contents_->now.size());
  }
  int64_t size() const override { return size_; }
  void read_at(int64_t offset, std::span<std::byte> out) const override {
    if (out.empty()) return;
    const std::lock_guard lock(contents_->mutex);
    const auto& now = contents_->now;
    const auto begin = static_cast<size_t>(offset);
    if (begin > now.size() || out.size() > now.size() - begin) {
      throw_user_error(fmt::format("cannot read '{}': {} bytes wanted at byte {}, but the file has {}", path_,
                                   out.size(), offset, now.size()),
                       "the file is cut short; make or copy it again");
    }
    std::memcpy(out.data(), now.data() + begin, out.size());
  }
  std::shared_ptr<const MappedFile> map() const override {
    const std::lock_guard lock(contents_->mutex);
    return std::make_shared<MemoryMap>(contents_->now);
  }

 private:
  std::shared_ptr<Contents> contents_;
  std::string path_;
  int64_t size_ = 0;
};

}  // namespace

MemoryFileEnvironment::MemoryFileEnvironment() : directories_{".", "/"} {}

std::unique_ptr<WritableFile> MemoryFileEnvironment::create(const std::string& path, CreateOptions options) {
  const std::lock_guard lock(mutex_);
  if (directories_.contains(path)) throw_file_error("create", path, EISDIR);
  if (!directories_.contains(parent_directory(path))) throw_file_error("create", path, ENOENT);
  auto& contents = names_[path];
  if (contents && options.mode == CreateMode::exclusive) throw_file_error("create", path, EEXIST);
  if (!contents) contents = std::make_shared<Contents>();
  const std::lock_guard contents_lock(contents->mutex);
  if (options.mode != CreateMode::append) contents->now.clear();
  contents->modified_ns = ++clock_;
  return std::make_unique<MemoryWritableFile>(contents);
}

std::unique_ptr<ReadableFile> MemoryFileEnvironment::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (directories_.contains(path)) throw_file_error("open", path, EISDIR);
  const auto found = names_.find(path);
  if (found == names_.end()) throw_file_error("open", path, ENOENT);
  return std::make_unique<MemoryReadableFile>(found->second, path);
}

void MemoryFileEnvironment::rename(const std::string& from, const std::string& to, RenameMode mode) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(from);
  if (found == names_.end()) throw_file_error("rename", from, ENOENT);
  if (mode == RenameMode::keep_existing && names_.contains(to)) {
    throw_file_error(fmt::format("rename to '{}' from", to), from, EEXIST);
  }
  auto contents = found->second;
  names_.erase(found);
  names_[to] = std::move(contents);
}

void MemoryFileEnvironment::sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!directories_.contains(path)) throw_file_error("sync", path, ENOENT);
  std::erase_if(synced_names_, [&](const auto& entry) { return parent_directory(entry.first) == path; });
  for (const auto& [name, contents] : names_) {
    if (parent_directory(name) == path) synced_names_[name] = contents;
  }
}

std::vector<std::string> MemoryFileEnvironment::list(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!directories_.contains(path)) throw_file_error("list", path, ENOENT);
  std::vector<std::string> found;
  const auto add = [&](const std::string& name) {
    if (name == path || parent_directory(name) != path) return;
    const size_t slash = name.rfind('/');
    found.push_back(slash == std::string::npos ? name : name.substr(slash + 1));
  };
  for (const auto& [name, contents] : names_) add(name);
  for (const auto& name : directories_) add(name);
  std::sort(found.begin(), found.end());
  return found;
}

void MemoryFileEnvironment::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (names_.erase(path) == 0) throw_file_error("remove", path, ENOENT);
}

void MemoryFileEnvironment::make_directories(const std::string& path) {
  const std::lock_guard lock(mutex_);
  for (std::string name = path; !directories_.contains(name); name = parent_directory(name)) {
    if (names_.contains(name)) throw_file_error("make folder", name, ENOTDIR);
    directories_.insert(name);
  }
}

std::optional<FileStatus> MemoryFileEnvironment::status(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (directories_.contains(path)) return FileStatus{.is_directory = true};
  const auto found = names_.find(path);
  if (found == names_.end()) return std::nullopt;
  const std::lock_guard contents_lock(found->second->mutex);
  return FileStatus{.size = static_cast<int64_t>(found->second->now.size()),
                    .modified_ns = found->second->modified_ns};
}

int64_t MemoryFileEnvironment::free_bytes(const std::string&) {
  return std::numeric_limits<int64_t>::max();
}

void MemoryFileEnvironment::crash(CrashLoss loss) {
  const std::lock_guard lock(mutex_);
  if (loss == CrashLoss::nothing) return;
  if (loss == CrashLoss::everything_not_synced) names_ = synced_names_;
  for (const auto& [name, contents] : names_) {
    const std::lock_guard contents_lock(contents->mutex);
    contents->now = contents->synced;
  }
  synced_names_ = names_;
}

}  // namespace athanor
