// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <memory>
#include <string>
#include <system_error>

#include "export/exporter.h"
#include "profile/load.h"
#include "profile/utf8.h"
#include "stackpipe/commands.h"
#include "stackpipe/message.h"

namespace stackpipe {
namespace {

struct Arguments {
  std::string file, format, output;
};

std::string KnownFormats() {
  std::string names;
  for (const Exporter& exporter : Exporters())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", exporter.name);
  return names;
}

std::string FileName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

int RunExport(const Arguments& arguments) {
  const Exporter* exporter = FindExporter(arguments.format);
  if (exporter == nullptr) {
    PrintError(fmt::format("there is no format '{}'. Formats: {}", arguments.format, KnownFormats()));
    return kExitUsage;
  }
  const LoadedProfile loaded = LoadProfile(arguments.file);
  if (!loaded.ok) {
    PrintError(loaded.problem);
    return kExitFailure;
  }
  if (!loaded.problem.empty()) PrintWarning(loaded.problem);
  if (loaded.profile.cost.samples == 0)
    PrintWarning(fmt::format("{}: there are no samples in it", arguments.file));

  FileOutput output(arguments.output);
  Status status = output.Open();
  if (status.ok()) {
    const std::string title = ValidUtf8(FileName(arguments.file));
    exporter->write(loaded.profile, {.title = title}, &output);
    status = output.Finish();
  }
  if (!status.ok()) {
    PrintError(fmt::format("{}: cannot be written: {}", arguments.output,
                           std::generic_category().message(status.os_error())));
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace

void AddExport(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("export", "Convert a recording for another viewer");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "The recording (.nettrace or .nettrace.zst)")->required();
  std::string formats = "The format:";
  for (const Exporter& exporter : Exporters()) {
    formats +=
        fmt::format("{} {} ({})", formats.back() == ':' ? "" : ",", exporter.name, exporter.description);
  }
  command->add_option("--to", arguments->format, formats)->required()->option_text("FORMAT");
  command->add_option("-o,--output", arguments->output, "The file to write")->required()->option_text("OUT");
  command->callback([arguments, exit_code] { *exit_code = RunExport(*arguments); });
}

}  // namespace stackpipe
