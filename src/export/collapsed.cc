// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <string>
#include <vector>

#include "export/exporter.h"

namespace stackpipe {
namespace {

// Names are free text; the format's separators are not allowed in them.
std::string Clean(std::string_view name) {
  std::string clean(name);
  for (char& c : clean) {
    if (c == ';') c = ':';
    if (c == '\n' || c == '\r') c = ' ';
  }
  return clean;
}

const char* Suffix(CodeKind kind) {
  switch (kind) {
    case CodeKind::kJit:
      return "_[j]";
    case CodeKind::kKernel:
      return "_[k]";
    case CodeKind::kInterpreter:
      return "_[0]";
    default:
      return "";
  }
}

}  // namespace

void WriteCollapsed(const Profile& profile, const ExportOptions&, Output* output) {
  std::vector<std::string> names;
  for (const ProfileFrame& frame : profile.frame_table)
    names.push_back(Clean(frame.name) + Suffix(frame.kind));

  for (const ProfileThread& thread : profile.threads) {
    std::string line =
        fmt::format("[{} tid={}]", thread.name.empty() ? "thread" : Clean(thread.name), thread.tid);
    std::vector<std::pair<std::uint32_t, std::size_t>> path;  // node, length of the line up to and with it
    for (std::uint32_t i = thread.first_node; i < thread.first_node + thread.node_count; ++i) {
      const ProfileNode& node = profile.nodes[i];
      if (node.frame != kNoFrame) {
        while (path.back().first != node.parent) path.pop_back();
        line.resize(path.back().second);
        line += ';';
        line += names[node.frame];
      }
      path.emplace_back(i, line.size());
      if (node.self.weight != 0) output->Write(fmt::format("{} {}\n", line, node.self.weight));
    }
  }
}

}  // namespace stackpipe
