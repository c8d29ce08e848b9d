// A folder that a command makes and fills, or leaves no trace of.
//
// Used by import and export. Thread safety: one thread; a second process that is given the same folder is
// refused.
#pragma once

#include <optional>
#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/base/folder_lock.h"

namespace athanor {

class OutputFolder {
 public:
  // Makes the folder. Throws Error (user) unless there is nothing at `path`, or an empty folder.
  OutputFolder(FileEnvironment& files, const std::string& path);
  // Without keep() the folder ends as it was found: absent or empty.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // All is written.
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool existed_ = false;
  bool kept_ = false;
  std::optional<FolderLock> lock_;
};

}  // namespace athanor
