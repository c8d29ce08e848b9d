// A folder that exists as long as the object: for tests and scratch work.
// Thread safety: a value.
#pragma once

#include <string>
#include <string_view>

namespace athanor {

class TemporaryFolder {
 public:
  TemporaryFolder();   // under TMPDIR, or /tmp
  ~TemporaryFolder();  // removes it with all it holds
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace athanor
