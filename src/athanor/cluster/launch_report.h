// What a rank tells the launcher that has started it, beside its output: the run's folder, and why it failed.
//
// Called by `athanor train` and by whoever reports errors. Thread safety: pure functions but for what they
// write. Without a launcher nothing is told.
//
// One line each through the pipe that ATHANOR_REPORT names: "folder PATH", or "error", which is followed by
// the message to the end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "athanor/cluster/job_place.h"

namespace athanor {

void report_folder(const Environment& environment, const std::string& folder);
// False if there is nobody to tell.
bool report_error(const Environment& environment, std::string_view message);

struct LaunchReport {
  std::string folder;  // empty: not told
  std::optional<std::string> error;
};
LaunchReport read_report(std::string_view text);

}  // namespace athanor
