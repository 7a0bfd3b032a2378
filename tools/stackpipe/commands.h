// SPDX-License-Identifier: MIT
//
// The subcommands of stackpipe, one file each (cmd_NAME.cc). Each Add function registers its subcommand with
// `app`; when the command line names it, it runs while the command line is parsed and leaves the exit code in
// `*exit_code`.
//
// Results go to stdout, all else to stderr. Texts for a person say what is wrong, with what, and what to do.
#ifndef STACKPIPE_TOOLS_STACKPIPE_COMMANDS_H_
#define STACKPIPE_TOOLS_STACKPIPE_COMMANDS_H_

#include <CLI/CLI.hpp>

namespace stackpipe {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // of input, output or the system
inline constexpr int kExitUsage = 2;    // the command line is wrong

void AddRecord(CLI::App& app, int* exit_code);
void AddReport(CLI::App& app, int* exit_code);
void AddExport(CLI::App& app, int* exit_code);
void AddDoctor(CLI::App& app, int* exit_code);

}  // namespace stackpipe

#endif  // STACKPIPE_TOOLS_STACKPIPE_COMMANDS_H_
