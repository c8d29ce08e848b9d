// Sole use of a folder among the processes of this machine.
//
// A run holds its folder while it writes there. The kernel gives the lock back when the process ends,
// however it ends, and nothing is written for it. Where the file system has no locks (some network file
// systems) the lock holds nothing back. Thread safety: none needed, it has no operations.
#pragma once

#include <string>

namespace athanor {

class FolderLock {
 public:
  // The folder must exist. User error when another lock holds it, in this process or another.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace athanor
