#include "athanor/base/file_environment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr size_t largest_transfer = size_t{1} << 30;  // the kernel moves at most 2 GiB - 4 KiB a call
// Behind it, what tells an unfinished file of this process from others.
constexpr std::string_view temporary_mark = ".tmp-";

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

int open_retrying(const std::string& path, int flags, mode_t mode = 0) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (descriptor >= 0 || errno != EINTR) return descriptor;
  }
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(Descriptor descriptor, std::string path, int64_t size, int64_t expected_bytes)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), size_(size), expected_(expected_bytes) {}

  void append(std::span<const std::byte> bytes) override { write_at(size_, bytes); }

  void write_at(int64_t offset, std::span<const std::byte> bytes) override {
    ATHANOR_ASSERT(descriptor_.get() >= 0 && offset >= 0);
    int64_t place = offset;
    auto rest = bytes;
    while (!rest.empty()) {
      const ssize_t written =
          ::pwrite(descriptor_.get(), rest.data(), std::min(rest.size(), largest_transfer), place);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        throw_file_error("write", path_, written < 0 ? errno : EIO,
                         describe_write(place, static_cast<int64_t>(rest.size()), expected_));
      }
      place += written;
      rest = rest.subspan(static_cast<size_t>(written));
    }
    size_ = std::max(size_, place);
  }

  int64_t size() const override { return size_; }

  void sync() override {
    ATHANOR_ASSERT(descriptor_.get() >= 0);
    int result = 0;
    do result = ::fsync(descriptor_.get());
    while (result != 0 && errno == EINTR);
    // Devices and pipes cannot be synced and need not be.
    if (result != 0 && errno != EINVAL && errno != EROFS) {
      throw_file_error("sync", path_, errno, describe_write(0, size_, expected_));
    }
  }

  void close() override {
    if (descriptor_.get() < 0) return;
    // Linux frees the descriptor in every case; an error here is a late write error (NFS, quota).
    if (::close(descriptor_.release()) != 0 && errno != EINTR) {
      throw_file_error("close", path_, errno, describe_write(0, size_, expected_));
    }
  }

 private:
  Descriptor descriptor_;
  std::string path_;
  int64_t size_, expected_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* address, size_t size) : address_(address), size_(size) {}
  ~PosixMappedFile() override {
    if (size_ > 0) ::munmap(address_, size_);
  }
  PosixMappedFile(const PosixMappedFile&) = delete;
  PosixMappedFile& operator=(const PosixMappedFile&) = delete;

  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(address_), size_};
  }

 private:
  void* address_;
  size_t size_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(Descriptor descriptor, std::string path, int64_t size)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), size_(size) {}

  int64_t size() const override { return size_; }

  void read_at(int64_t offset, std::span<std::byte> out) const override {
    ATHANOR_ASSERT(offset >= 0);
    int64_t place = offset;
    auto rest = out;
    while (!rest.empty()) {
      const ssize_t count =
          ::pread(descriptor_.get(), rest.data(), std::min(rest.size(), largest_transfer), place);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_file_error("read", path_, errno, fmt::format("at byte {}", place));
      if (count == 0) {
        throw_user_error(
            fmt::format("cannot read '{}': {} bytes wanted at byte {}, but the file ends {} bytes earlier",
                        path_, out.size(), offset, rest.size()),
            "the file is cut short; make or copy it again");
      }
      place += count;
      rest = rest.subspan(static_cast<size_t>(count));
    }
  }

  std::shared_ptr<const MappedFile> map() const override {
    const auto size = static_cast<size_t>(size_);
    if (size == 0) return std::make_shared<PosixMappedFile>(nullptr, 0);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_.get(), 0);
    if (address == MAP_FAILED) throw_file_error("map", path_, errno, fmt::format("{} bytes", size));
    return std::make_shared<PosixMappedFile>(address, size);
  }

 private:
  Descriptor descriptor_;
  std::string path_;
  int64_t size_;
};

class PosixFileEnvironment final : public FileEnvironment {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path, CreateOptions options) override {
    // Without O_NONBLOCK a pipe that nobody reads would hang here.
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK;
    if (options.mode == CreateMode::replace) flags |= O_TRUNC;
    if (options.mode == CreateMode::exclusive) flags |= O_EXCL;
    Descriptor descriptor(open_retrying(path, flags, 0666));
    if (descriptor.get() < 0) throw_file_error("create", path, errno);
    struct stat status{};
    if (::fstat(descriptor.get(), &status) != 0) throw_file_error("examine", path, errno);
    const int64_t size = S_ISREG(status.st_mode) ? static_cast<int64_t>(status.st_size) : 0;
    return std::make_unique<PosixWritableFile>(std::move(descriptor), path, size, options.expected_bytes);
  }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    Descriptor descriptor(open_retrying(path, O_RDONLY | O_NONBLOCK));
    if (descriptor.get() < 0) throw_file_error("open", path, errno);
    struct stat status{};
    if (::fstat(descriptor.get(), &status) != 0) throw_file_error("examine", path, errno);
    if (S_ISDIR(status.st_mode)) throw_file_error("open", path, EISDIR);
    if (!S_ISREG(status.st_mode)) {
      throw_user_error(fmt::format("cannot open '{}': it is not a regular file", path),
                       "pipes and devices cannot be read here; write the data to a file first");
    }
    return std::make_unique<PosixReadableFile>(std::move(descriptor), path,
                                               static_cast<int64_t>(status.st_size));
  }

  void rename(const std::string& from, const std::string& to, RenameMode mode) override {
    const auto action = [&] { return fmt::format("rename to '{}' from", to); };
    if (mode == RenameMode::replace) {
      if (::rename(from.c_str(), to.c_str()) != 0) throw_file_error(action(), from, errno);
      return;
    }
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS) throw_file_error(action(), from, errno);
    // The file system has no such rename: a second name refuses an existing one just as well.
    if (::link(from.c_str(), to.c_str()) == 0) {
      if (::unlink(from.c_str()) != 0) throw_file_error("remove", from, errno);
      return;
    }
    if (errno != EPERM && errno != EOPNOTSUPP) throw_file_error(action(), from, errno);
    if (exists(to)) throw_file_error(action(), from, EEXIST);
    if (::rename(from.c_str(), to.c_str()) != 0) throw_file_error(action(), from, errno);
  }

  void sync_directory(const std::string& path) override {
    Descriptor descriptor(open_retrying(path, O_RDONLY | O_DIRECTORY));
    if (descriptor.get() < 0) throw_file_error("open", path, errno);
    int result = 0;
    do result = ::fsync(descriptor.get());
    while (result != 0 && errno == EINTR);
    // Some file systems cannot sync a folder; their names are as durable as they get.
    if (result != 0 && errno != EINVAL && errno != EOPNOTSUPP) throw_file_error("sync", path, errno);
  }

  std::vector<std::string> list(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
    if (!directory) throw_file_error("list", path, errno);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) throw_file_error("list", path, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) throw_file_error("remove", path, errno);
  }

  void make_directories(const std::string& path) override {
    if (const auto found = status(path)) {
      if (!found->is_directory) throw_file_error("make folder", path, ENOTDIR);
      return;
    }
    const std::string parent = parent_directory(path);
    if (parent != path) make_directories(parent);
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) throw_file_error("make folder", path, errno);
    sync_directory(parent);
  }

  std::optional<FileStatus> status(const std::string& path) override {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
      throw_file_error("examine", path, errno);
    }
    return FileStatus{.size = static_cast<int64_t>(status.st_size),
                      .modified_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                                     static_cast<int64_t>(status.st_mtim.tv_nsec),
                      .is_directory = S_ISDIR(status.st_mode),
                      .is_special = !S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode)};
  }

  int64_t free_bytes(const std::string& path) override {
    struct statvfs status{};
    if (::statvfs(path.c_str(), &status) != 0) throw_file_error("examine the file system of", path, errno);
    const auto blocks = static_cast<uint64_t>(status.f_bavail), size = static_cast<uint64_t>(status.f_frsize);
    constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return static_cast<int64_t>(size != 0 && blocks > most / size ? most : blocks * size);
  }
};

std::string_view hint_for(int error_number) {
  switch (error_number) {
    case ENOENT:
      return "check the path; it does not exist";
    case ENOTDIR:
      return "check the path; a part of it that should be a folder is none";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and of its folder";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or choose a folder on another disk";
    case EROFS:
      return "the file system is read-only; choose another folder";
    case EISDIR:
      return "it is a folder; give the path of a file";
    case EEXIST:
      return "it exists already and is not overwritten; choose another name or remove it";
    case EIO:
      return "the device reports a fault; look at the system log and use another disk";
    case EMFILE:
    case ENFILE:
      return "too many open files; raise the limit (ulimit -n)";
    case EFBIG:
      return "the file system or a limit (ulimit -f) allows no larger file";
    case ELOOP:
      return "a symbolic link leads back to itself";
    case ENAMETOOLONG:
      return "choose a shorter path";
    default:
      return "";
  }
}

}  // namespace

FileEnvironment& system_files() {
  static PosixFileEnvironment environment;  // holds no state
  return environment;
}

void throw_file_error(std::string_view action, const std::string& path, int error_number,
                      const std::string& detail) {
  const std::string reason = std::error_code(error_number, std::generic_category()).message();
  throw_user_error(fmt::format("cannot {} '{}': {}{}", action, path, reason,
                               detail.empty() ? "" : fmt::format(" ({})", detail)),
                   std::string(hint_for(error_number)));
}

std::string describe_write(int64_t offset, int64_t bytes, int64_t expected_bytes) {
  std::string text = fmt::format("{} bytes at byte {}", bytes, offset);
  if (expected_bytes > 0) text += fmt::format("; the whole file needs {} bytes", expected_bytes);
  return text;
}

void require_file_name(FileEnvironment& files, const std::string& path) {
  if (path.empty()) throw_user_error("cannot create '': it is no name of a file", "give the path of a file");
  const auto status = files.status(path);
  if (!status) return;
  if (status->is_directory) throw_file_error("create", path, EISDIR);
  if (status->is_special) {
    throw_user_error(fmt::format("cannot create '{}': it is a device, pipe or socket", path),
                     "give the path of a file: it is written beside its place and then put there whole");
  }
}

void write_file_atomically(FileEnvironment& files, const std::string& path,
                           const std::function<void(WritableFile&)>& writer, AtomicWriteOptions options) {
  const std::string directory = parent_directory(path);
  require_file_name(files, path);
  if (options.rename == RenameMode::keep_existing && files.exists(path)) {
    throw_file_error("create", path, EEXIST);
  }
  if (options.expected_bytes > 0 && files.exists(directory)) {
    const int64_t free = files.free_bytes(directory);
    if (free < options.expected_bytes) {
      throw_file_error("create", path, ENOSPC,
                       fmt::format("the file needs {} bytes, {} are free", options.expected_bytes, free));
    }
  }
  std::string temporary;
  for (int attempt = 0;; ++attempt) {
    temporary = fmt::format("{}{}{}-{}", path, temporary_mark, ::getpid(), attempt);
    if (!files.exists(temporary)) break;
  }
  bool created = false;
  try {
    const auto file =
        files.create(temporary, {.mode = CreateMode::exclusive, .expected_bytes = options.expected_bytes});
    created = true;
    writer(*file);
    file->sync();
    file->close();
    files.rename(temporary, path, options.rename);
  } catch (...) {
    try {
      if (created && files.exists(temporary)) files.remove(temporary);
    } catch (...) {
      // The first error is the one that matters; what is left has a name nobody reads.
    }
    throw;
  }
  files.sync_directory(directory);
}

void write_file_atomically(FileEnvironment& files, const std::string& path, std::string_view contents) {
  write_file_atomically(files, path,
                        [&](WritableFile& file) { file.append(std::as_bytes(std::span(contents))); },
                        {.expected_bytes = static_cast<int64_t>(contents.size())});
}

bool is_temporary_name(std::string_view name) {
  return name.find(temporary_mark) != std::string_view::npos;
}

bool is_temporary_name(std::string_view name, std::string_view of) {
  return name.starts_with(of) && name.substr(of.size()).starts_with(temporary_mark);
}

std::string read_file(FileEnvironment& files, const std::string& path, int64_t max_bytes) {
  const auto file = files.open(path);
  if (file->size() > max_bytes) {
    throw_user_error(fmt::format("'{}' has {} bytes, more than the {} that are sensible here", path,
                                 file->size(), max_bytes),
                     "check that it is the file you meant");
  }
  std::string contents(static_cast<size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(contents)));
  return contents;
}

std::string parent_directory(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty() || directory == ".") return std::string(name);
  return fmt::format("{}{}{}", directory, directory.back() == '/' ? "" : "/", name);
}

}  // namespace athanor
