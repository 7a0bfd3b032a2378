// SPDX-License-Identifier: MIT
#include "export/exporter.h"

namespace stackpipe {

std::span<const Exporter> Exporters() {
  static constexpr Exporter kExporters[] = {
      {"collapsed", "stacks as lines of text, for flamegraph.pl and many others", WriteCollapsed},
      {"speedscope", "JSON for www.speedscope.app", WriteSpeedscope},
      {"flamegraph", "a flame graph in one HTML file", WriteFlamegraph},
  };
  return kExporters;
}

const Exporter* FindExporter(std::string_view name) {
  for (const Exporter& exporter : Exporters()) {
    if (exporter.name == name) return &exporter;
  }
  return nullptr;
}

}  // namespace stackpipe
