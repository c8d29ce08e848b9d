#include "athanor/base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "athanor/base/file_environment.h"

namespace athanor {

TemporaryFolder::TemporaryFolder() {
  const char* parent = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  path_ = join_path(parent != nullptr && *parent != '\0' ? parent : "/tmp", "athanor-XXXXXX");
  if (::mkdtemp(path_.data()) == nullptr) throw_file_error("make folder", path_, errno);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace athanor
