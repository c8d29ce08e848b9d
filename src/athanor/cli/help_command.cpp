#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/near_name.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/run_options.h"
#include "athanor/observe/terminal.h"

namespace athanor {

void help_options_command(const HelpOptionsArguments& arguments) {
  const RunConfiguration run;
  if (arguments.markdown) return write_output(options_markdown(run.table));
  if (!arguments.group.empty() && !run.table.is_group(arguments.group)) {
    // Perhaps it is an option: then its group is what was meant.
    std::vector<std::string> groups;
    for (const OptionRow& row : run.table.rows()) {
      const std::string group = row.name().substr(0, row.name().rfind('.'));
      if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
    const std::string first = arguments.group.substr(0, arguments.group.find('.'));
    const bool known = std::find(groups.begin(), groups.end(), first) != groups.end();
    const std::string near = known ? first : nearest_name(first, groups);
    throw_user_error(fmt::format("there is no group of options {}", arguments.group),
                     near.empty() ? fmt::format("there are {}", fmt::join(groups, ", "))
                                  : fmt::format("did you mean {}?", near));
  }
  write_output(option_help(run.table, arguments.group, std::min(100, terminal_columns(stdout))));
}

}  // namespace athanor
