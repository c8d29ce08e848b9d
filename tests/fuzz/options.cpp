// Any bytes as a file of options, after the first zero byte as lines of settings: refused as a user error, or
// the resolved configuration reads back to the same values.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace athanor;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  RunConfiguration run;
  try {
    apply_toml(run.table, input.substr(0, end), "options.toml");
    std::string_view settings = input.substr(std::min(end + 1, input.size()));
    while (!settings.empty()) {
      const size_t line = std::min(settings.find('\n'), settings.size());
      run.table.apply_setting(settings.substr(0, line));
      settings.remove_prefix(std::min(line + 1, settings.size()));
    }
    validate(run.options);
  } catch (const Error& error) {
    ATHANOR_ASSERT(error.kind() == ErrorKind::user);
    ATHANOR_ASSERT(!error.message().empty());
    return 0;
  }
  RunConfiguration again;
  apply_toml(again.table, resolved_toml(run.table), "again.toml");
  ATHANOR_ASSERT(differences(run.table, again.table).empty());
  validate(again.options);
  return 0;
}
