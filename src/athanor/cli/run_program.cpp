#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "athanor/base/error.h"
#include "athanor/cli/command_line.h"
#include "athanor/cli/commands.h"
#include "athanor/cluster/exit_code.h"
#include "athanor/cluster/launch_report.h"
#include "athanor/observe/format.h"

namespace athanor {

void write_output(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw_user_error("cannot write to standard output", "is the disk full, or the reader gone?");
}

void write_message(const std::string& text) {
  std::fputs(text.c_str(), stderr);
}

int run_program(int argc, const char* const* argv) {
  ExitCode code = ExitCode::success;
  std::string text;
  try {
    run_command_line(argc, argv);
    return static_cast<int>(code);
  } catch (const Error& error) {
    code = exit_code_of(error.kind());
    text = error.what();
  } catch (const std::bad_alloc&) {
    code = ExitCode::failure;
    text = "the memory of this machine does not suffice";
  } catch (const std::exception& error) {
    code = ExitCode::failure;
    text = error.what();
  }
  // The launcher of several ranks says one thing for all.
  const Environment environment = process_environment();
  if (report_error(environment, text) && environment(rank_variable) == "0") return static_cast<int>(code);
  // Messages quote names and pieces of files, which may hold what a terminal obeys.
  write_message("athanor: " + printable_lines(text) + "\n");
  return static_cast<int>(code);
}

}  // namespace athanor
