// SPDX-License-Identifier: MIT
//
// The data of the page (page/page.js reads it):
//     modules: [name]
//     kinds:   [name]
//     frames:  [[name, module, kind, file, line]]
//     threads: [{tid, name, nodes: [frame, distance to the parent, self weight, self samples, self external]
//     * n}]
// Nodes are in preorder, without the thread's root: node 0's parent is the root, at distance 1.
#include <map>
#include <string>

#include "export/exporter.h"
#include "export/json_stream.h"
#include "export/page.h"
#include "profile/rows.h"

namespace stackpipe {
namespace {

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

void Field(ScriptWriter* json, const char* key, std::string_view text) {
  json->Key(key);
  JsonText(*json, text);
}

void Field(ScriptWriter* json, const char* key, std::uint64_t number) {
  json->Key(key);
  json->Uint64(number);
}

void WriteFrames(const Profile& profile, ScriptWriter* json) {
  json->Key("modules");
  json->StartArray();
  for (const ProfileModule& module : profile.modules) JsonText(*json, module.name);
  json->EndArray();

  std::map<std::string, unsigned> kinds;
  json->Key("kinds");
  json->StartArray();
  for (const ProfileFrame& frame : profile.frame_table) {
    const auto next = static_cast<unsigned>(kinds.size());
    if (kinds.try_emplace(KindName(frame.kind), next).second) json->String(KindName(frame.kind));
  }
  json->EndArray();

  json->Key("frames");
  json->StartArray();
  for (const ProfileFrame& frame : profile.frame_table) {
    json->StartArray();
    JsonText(*json, frame.name);
    json->Uint(frame.module);
    json->Uint(kinds[KindName(frame.kind)]);
    JsonText(*json, frame.source_file);
    json->Int(frame.source_line);
    json->EndArray();
  }
  json->EndArray();
}

void WriteThread(const Profile& profile, const ProfileThread& thread, ScriptWriter* json) {
  json->StartObject();
  Field(json, "tid", thread.tid);
  Field(json, "name", thread.name);
  json->Key("nodes");
  json->StartArray();
  for (std::uint32_t i = thread.first_node + 1; i < thread.first_node + thread.node_count; ++i) {
    const ProfileNode& node = profile.nodes[i];
    json->Uint(node.frame);
    json->Uint(i - node.parent);
    json->Uint64(node.self.weight);
    json->Uint64(node.self.samples);
    json->Uint64(node.self.external);
  }
  json->EndArray();
  json->EndObject();
}

void WriteData(const Profile& profile, const ExportOptions& options, Output* output) {
  ScriptStream stream(output);
  ScriptWriter json(stream);
  json.StartObject();
  Field(&json, "title", options.title);
  Field(&json, "command", profile.process.command_line);
  Field(&json, "pid", profile.process.pid);
  Field(&json, "runtime", profile.session.runtime);
  Field(&json, "mode", profile.session.mode);
  Field(&json, "unit", UnitName(profile.weight_unit));
  Field(&json, "duration", profile.duration_ns);
  Field(&json, "period", profile.session.period_ns);
  json.Key("complete");
  json.Bool(profile.complete);
  Field(&json, "expected", profile.loss.expected);
  Field(&json, "dropped", profile.loss.dropped);
  Field(&json, "managedFrames", profile.managed_frames);
  Field(&json, "managedNamed", profile.managed_named);
  WriteFrames(profile, &json);
  json.Key("threads");
  json.StartArray();
  for (const ProfileThread& thread : profile.threads) WriteThread(profile, thread, &json);
  json.EndArray();
  json.EndObject();
}

}  // namespace

void WriteFlamegraph(const Profile& profile, const ExportOptions& options, Output* output) {
  constexpr std::string_view kTitle = "@@TITLE@@", kData = "@@DATA@@";
  const std::string_view page = FlamegraphPage();
  const std::size_t title = page.find(kTitle);
  const std::size_t data = page.find(kData, title);
  output->Write(page.substr(0, title));
  output->Write(EscapeHtml(options.title));
  output->Write(page.substr(title + kTitle.size(), data - title - kTitle.size()));
  WriteData(profile, options, output);
  output->Write(page.substr(data + kData.size()));
}

}  // namespace stackpipe
