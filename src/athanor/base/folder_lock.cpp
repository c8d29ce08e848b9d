#include "athanor/base/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"

namespace athanor {

FolderLock::FolderLock(const std::string& folder) {
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) throw_file_error("open", folder, errno);
  int result = 0;
  do {
    result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw_user_error(fmt::format("another process is writing to {}", folder),
                     "wait until it ends, or begin a run in another folder");
  }
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace athanor
