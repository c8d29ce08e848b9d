// The one door to files: open, read, map, write, sync, rename, list.
//
// Every room that touches a file takes a `FileEnvironment&`, so that tests can stop, tear, fill up or
// corrupt at any operation (`faulty_file_environment.h`) and lose what was not synced
// (`memory_file_environment.h`). `system_files()` is the real one.
//
// What is durable: the contents of a file after `sync()`, its name after `sync_directory()` of its folder,
// folders after `make_directories()`. `write_file_atomically` does all of it in the right order.
//
// Errors: `Error` of kind user with the path, the system's reason and a hint. A full disk says how many
// bytes were needed. Thread safety: an environment may be used from several threads; a WritableFile by one
// at a time; a ReadableFile and a MappedFile by many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes without reporting an error: call close() first

  virtual void append(std::span<const std::byte> bytes) = 0;
  // Overwrites or extends at an offset; leaves the place where append goes as it is unless it extends it.
  virtual void write_at(int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual int64_t size() const = 0;  // bytes; where the next append goes
  virtual void sync() = 0;           // contents are on the device when it returns
  virtual void close() = 0;
};

// Read-only memory that stays valid as long as the object lives. A file that another program cuts while
// it is mapped ends the process on access (SIGBUS): map only files that are replaced by rename.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;  // at the time of opening
  // Fills the whole of `out` or throws (a file that ends early is an error).
  virtual void read_at(int64_t offset, std::span<std::byte> out) const = 0;
  virtual std::shared_ptr<const MappedFile> map() const = 0;
};

struct FileStatus {
  int64_t size = 0;
  int64_t modified_ns = 0;  // since the epoch
  bool is_directory = false;
  bool is_special = false;  // a device, pipe or socket
};

enum class CreateMode : uint8_t {
  replace,    // empties an existing file
  append,     // goes on at its end
  exclusive,  // refuses an existing file
};

struct CreateOptions {
  CreateMode mode = CreateMode::replace;
  int64_t expected_bytes = 0;  // of the whole file, if known: told to the user when the disk is full
};

enum class RenameMode : uint8_t { replace, keep_existing };

class FileEnvironment {
 public:
  virtual ~FileEnvironment() = default;

  virtual std::unique_ptr<WritableFile> create(const std::string& path, CreateOptions options) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;
  // `keep_existing` refuses when `to` exists.
  virtual void rename(const std::string& from, const std::string& to, RenameMode mode) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& path) = 0;  // names, sorted
  virtual void remove(const std::string& path) = 0;                    // a file
  virtual void make_directories(const std::string& path) = 0;          // with parents; durable
  virtual std::optional<FileStatus> status(const std::string& path) = 0;
  virtual int64_t free_bytes(const std::string& path) = 0;  // on the file system of an existing path

  bool exists(const std::string& path) { return status(path).has_value(); }
};

// The file system of this machine. It has no state.
FileEnvironment& system_files();

struct AtomicWriteOptions {
  int64_t expected_bytes = 0;  // if known: refused beforehand when the disk has less
  RenameMode rename = RenameMode::replace;
};

// Calls `writer` on a new file beside `path` under a temporary name (`PATH.tmp-PROCESS-N`), then syncs,
// renames and syncs the folder. If anything throws, `path` is as it was and the temporary file is removed;
// if the process dies, the temporary file may stay. A folder, device or pipe at `path` is refused beforehand:
// a rename would put a file in the place of the device.
void write_file_atomically(FileEnvironment& files, const std::string& path,
                           const std::function<void(WritableFile&)>& writer, AtomicWriteOptions options = {});
void write_file_atomically(FileEnvironment& files, const std::string& path, std::string_view contents);

// Throws a user error if `path` is empty or names a folder, device, pipe or socket. For those who learn only
// after long work what they write.
void require_file_name(FileEnvironment& files, const std::string& path);

// True for the names that `write_file_atomically` leaves behind when it is killed.
bool is_temporary_name(std::string_view name);
// True for those of the file `of` in the same folder.
bool is_temporary_name(std::string_view name, std::string_view of);

// A whole file as a string; refuses one above `max_bytes`.
std::string read_file(FileEnvironment& files, const std::string& path, int64_t max_bytes);

std::string parent_directory(std::string_view path);  // "." if there is none
std::string join_path(std::string_view directory, std::string_view name);

// Throws the error of a failed operation: "cannot ACTION 'PATH': REASON (DETAIL)" with a hint that fits
// the reason. `error_number` is an errno value. For implementations of FileEnvironment.
[[noreturn]] void throw_file_error(std::string_view action, const std::string& path, int error_number,
                                   const std::string& detail = {});

// The detail of a write that failed, for `throw_file_error`.
std::string describe_write(int64_t offset, int64_t bytes, int64_t expected_bytes);

}  // namespace athanor
