// The command line: which command it names, with which arguments.
//
// Called by run_program.cpp. Thread safety: one thread.
#pragma once

namespace athanor {

// Reads the arguments (argv[0] is the program) and runs the command, or writes the help that was asked for.
// Throws what the command throws, and a user error for arguments that are none.
void run_command_line(int argc, const char* const* argv);

}  // namespace athanor
