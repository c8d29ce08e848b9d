#include "athanor/cli/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/cli/option_value.h"

namespace athanor {
namespace {

std::vector<std::string> runs_in(FileEnvironment& files, const std::string& folder) {
  std::vector<std::string> found;
  if (!is_folder(files, folder)) return found;
  for (const std::string& name : files.list(folder)) {
    const std::string path = join_path(folder, name);
    try {
      if (holds_run(files, path)) found.push_back(path);
    } catch (const Error&) {
      // Something else that cannot be looked into (a link to itself, a closed folder) is no run.
    }
  }
  return found;
}

// When anything directly in the folder last changed.
int64_t last_change(FileEnvironment& files, const std::string& folder) {
  int64_t latest = 0;
  for (const std::string& name : files.list(folder)) {
    if (const auto status = files.status(join_path(folder, name))) {
      latest = std::max(latest, status->modified_ns);
    }
  }
  return latest;
}

}  // namespace

bool is_folder(FileEnvironment& files, const std::string& path) {
  const auto status = files.status(path);
  return status && status->is_directory;
}

std::string configuration_of(FileEnvironment& files, const std::string& folder) {
  constexpr int64_t largest = 1 << 20;  // bytes
  return read_file(files, join_path(folder, configuration_file), largest);
}

bool holds_run(FileEnvironment& files, const std::string& folder) {
  return is_folder(files, folder) && files.exists(join_path(folder, configuration_file));
}

void settle_existing_run(FileEnvironment& files, RunOptions& options) {
  if (!holds_run(files, options.run_folder())) return;
  switch (options.existing) {
    case ExistingRun::resume:
      options.resume = true;
      return;
    case ExistingRun::refuse:
      throw_user_error(fmt::format("{} already holds a run", options.run_folder()),
                       "choose another run.name, or set run.existing to number or resume");
    case ExistingRun::number: {
      const std::string name = options.name;
      int64_t number = 2;
      do {
        options.name = fmt::format("{}-{}", name, number++);
      } while (files.exists(options.run_folder()));
      return;
    }
  }
}

std::string latest_run(FileEnvironment& files, const std::string& runs) {
  std::string latest;
  int64_t when = -1;
  for (const std::string& path : runs_in(files, runs)) {
    if (const int64_t change = last_change(files, path); change > when) {
      latest = path;
      when = change;
    }
  }
  if (latest.empty()) {
    throw_user_error(
        fmt::format("there is no run in {}", runs),
        "name the folder of one (to go on with it, --resume FOLDER), or start one: athanor train");
  }
  return latest;
}

void require_run(FileEnvironment& files, const std::string& folder) {
  if (holds_run(files, folder)) return;
  const std::string parent = parent_directory(folder);
  const std::vector<std::string> runs = runs_in(files, parent);
  throw_user_error(
      fmt::format("{} holds no run: there is no {}", folder, join_path(folder, configuration_file)),
      runs.empty() ? fmt::format("{} holds none either", parent)
                   : fmt::format("there are {}", fmt::join(runs, ", ")));
}

void set_run_folder(RunOptions& options, const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string name = path.substr(path.rfind('/') + 1);
  if (!is_plain_name(name)) {
    throw_user_error(fmt::format("the folder {} has a name that no run can have", folder),
                     "the last part of its path must be letters, digits, - and _");
  }
  options.name = name;
  options.folder = parent_directory(path);
}

}  // namespace athanor
