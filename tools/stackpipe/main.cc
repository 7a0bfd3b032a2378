// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <exception>
#include <string>

#include "stackpipe/commands.h"
#include "stackpipe/message.h"

namespace stackpipe {
namespace {

// CLI11 says what is wrong; this adds what to do. Returns the exit code.
int ReportUsageError(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (!chosen.empty()) {
    PrintError(std::string(error.what()) + "\nRun 'stackpipe " + chosen.front()->get_name() +
               " --help' for its options.");
    return kExitUsage;
  }
  std::string text;
  if (argc < 2) {
    text = "a command is missing";
  } else if (argv[1][0] == '-') {
    text = "there is no option '" + std::string(argv[1]) + "'";
  } else {
    text = "there is no command '" + std::string(argv[1]) + "'";
  }
  text += ". Commands:";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += " " + command->get_name();
  }
  PrintError(text + "\nRun 'stackpipe --help' to see what they do.");
  return kExitUsage;
}

int Main(int argc, char** argv) {
  int exit_code = kExitOk;
  CLI::App app(
      "Records and shows profiles of programs that run JIT-compiled, AOT-compiled, interpreted and native "
      "code.",
      "stackpipe");
  app.set_version_flag("--version", "stackpipe " STACKPIPE_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  AddRecord(app, &exit_code);
  AddReport(app, &exit_code);
  AddExport(app, &exit_code);
  AddDoctor(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    return ReportUsageError(app, error, argc, argv);
  }
  return exit_code;
}

}  // namespace
}  // namespace stackpipe

int main(int argc, char** argv) {
  try {
    return stackpipe::Main(argc, argv);
  } catch (const std::exception& error) {
    stackpipe::PrintError(error.what());
    return stackpipe::kExitFailure;
  }
}
