// Which folder a run is kept in, when it may hold one already.
//
// Called by the commands that start, resume or read a run. Thread safety: one thread; two processes that
// start runs of one name at the same moment may choose the same folder.
#pragma once

#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/train/options.h"

namespace athanor {

// The file of a run folder that holds the resolved configuration; a folder with it holds a run.
inline constexpr const char* configuration_file = "config.toml";

// Its text. Throws Error (user) if it cannot be read.
std::string configuration_of(FileEnvironment& files, const std::string& folder);

bool is_folder(FileEnvironment& files, const std::string& path);
bool holds_run(FileEnvironment& files, const std::string& folder);

// Applies run.existing to a run that is started: gives it another name (number), sets `resume` (resume), or
// throws Error (user) (refuse).
void settle_existing_run(FileEnvironment& files, RunOptions& options);

// The folder in `runs` whose run was last worked on. Throws Error (user) if there is none.
std::string latest_run(FileEnvironment& files, const std::string& runs);

// Throws Error (user) with the runs that are there, unless `folder` holds a run.
void require_run(FileEnvironment& files, const std::string& folder);

// Makes `folder` the one of the run: sets run.folder and run.name. Throws Error (user) if its last part
// cannot be a name.
void set_run_folder(RunOptions& options, const std::string& folder);

}  // namespace athanor
