#include "athanor/cli/output_folder.h"

#include <filesystem>
#include <system_error>

#include "athanor/base/error.h"

namespace athanor {

OutputFolder::OutputFolder(FileEnvironment& files, const std::string& path) : path_(path) {
  if (path.empty()) throw_user_error("--output '' names no folder", "give the folder to make");
  const auto refuse = [&] {
    throw_user_error(fmt::format("--output {}: there is something already", path),
                     "name a folder that does not exist, or an empty one; nothing is written over");
  };
  const auto status = files.status(path);
  existed_ = status.has_value();
  if (existed_ && !status->is_directory) refuse();
  files.make_directories(path);
  lock_.emplace(path);
  if (!files.list(path).empty()) refuse();
}

OutputFolder::~OutputFolder() {
  if (kept_) return;
  // It was empty when the lock was taken: all in it is of this command.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored))
    std::filesystem::remove_all(entry.path(), ignored);
  if (!existed_) std::filesystem::remove(path_, ignored);
}

}  // namespace athanor
