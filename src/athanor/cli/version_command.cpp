#include <fmt/core.h>

#include "athanor/cli/commands.h"
#include "athanor/machine/host.h"

namespace athanor {

void version_command() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}", __clang_major__, __clang_minor__);
#else
  const std::string compiler = fmt::format("g++ {}.{}", __GNUC__, __GNUC_MINOR__);
#endif
  write_output(fmt::format("athanor 0.1.0, built with {}; {}\n", compiler, processor_name()));
}

}  // namespace athanor
