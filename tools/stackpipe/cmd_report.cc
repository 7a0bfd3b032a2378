// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>

#include "profile/load.h"
#include "stackpipe/commands.h"
#include "stackpipe/message.h"
#include "stackpipe/report.h"

namespace stackpipe {
namespace {

struct Arguments {
  ReportOptions report;
  std::string by = "function";
  bool json = false;
};

// Columns of the terminal that stdout is, or 0.
std::size_t TerminalWidth() {
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

int RunReport(const Arguments& arguments) {
  const LoadedProfile loaded = LoadProfile(arguments.report.file);
  if (!loaded.ok) {
    PrintError(loaded.problem);
    return kExitFailure;
  }
  if (!loaded.problem.empty()) PrintWarning(loaded.problem);
  const std::string text = arguments.json ? ReportJson(loaded.profile, arguments.report)
                                          : ReportTable(loaded.profile, arguments.report);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    PrintError(fmt::format("cannot write the report: {}", std::generic_category().message(errno)));
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace

void AddReport(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("report", "Show what a recording says, as a table");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->report.file, "The recording (.nettrace or .nettrace.zst)")
      ->required();
  command->add_option("--by", arguments->by, "What a row is: function, thread or module (default: function)")
      ->check(CLI::IsMember({"function", "thread", "module"}))
      ->option_text("WHAT");
  // CLI11 itself would take -1 for a very large number.
  const auto is_count = [](const std::string& text) {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return digits ? std::string() : fmt::format("'{}' is not a number of rows", text);
  };
  command->add_option("--limit", arguments->report.limit, "Rows to show; 0 shows all (default: 20)")
      ->check(is_count)
      ->option_text("N");
  command->add_flag("--json", arguments->json, "Print JSON, for scripts");
  command->callback([arguments, exit_code] {
    ReportOptions& report = arguments->report;
    if (arguments->by == "thread") report.by = GroupBy::kThread;
    if (arguments->by == "module") report.by = GroupBy::kModule;
    report.width = TerminalWidth();
    *exit_code = RunReport(*arguments);
  });
}

}  // namespace stackpipe
