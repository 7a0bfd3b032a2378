// SPDX-License-Identifier: MIT
//
// The formats that a profile can be exported to, by name. One file for each format.
#ifndef STACKPIPE_EXPORT_EXPORTER_H_
#define STACKPIPE_EXPORT_EXPORTER_H_

#include <span>
#include <string_view>

#include "export/output.h"
#include "profile/profile.h"

namespace stackpipe {

// What a viewer shows as the profile's title.
struct ExportOptions {
  std::string_view title;
};

struct Exporter {
  const char* name;
  const char* description;
  // Writes all of the profile to `output`, whose Finish is the caller's.
  void (*write)(const Profile& profile, const ExportOptions& options, Output* output);
};

std::span<const Exporter> Exporters();
// nullptr: there is no such format.
const Exporter* FindExporter(std::string_view name);

// Stacks as lines of text, "root;child;leaf COUNT". Source: the format of Brendan Gregg's FlameGraph, with
// the kind suffixes of async-profiler.
void WriteCollapsed(const Profile& profile, const ExportOptions& options, Output* output);
// The JSON of www.speedscope.app. Source: speedscope's file-format schema.
void WriteSpeedscope(const Profile& profile, const ExportOptions& options, Output* output);
// One HTML page that shows a flame graph and needs nothing else, no network either.
void WriteFlamegraph(const Profile& profile, const ExportOptions& options, Output* output);

}  // namespace stackpipe

#endif  // STACKPIPE_EXPORT_EXPORTER_H_
