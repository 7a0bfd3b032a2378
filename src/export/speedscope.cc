// SPDX-License-Identifier: MIT
#include <vector>

#include "export/exporter.h"
#include "export/json_stream.h"
#include "profile/rows.h"

namespace stackpipe {
namespace {

void WriteFrames(const Profile& profile, JsonWriter* json) {
  json->Key("shared");
  json->StartObject();
  json->Key("frames");
  json->StartArray();
  for (const ProfileFrame& frame : profile.frame_table) {
    json->StartObject();
    json->Key("name");
    JsonText(*json, frame.name);
    // speedscope has no field for the module: where the source is not known, the module is the next best
    // place.
    const std::string& file =
        frame.source_file.empty() ? profile.modules[frame.module].name : frame.source_file;
    if (!file.empty()) {
      json->Key("file");
      JsonText(*json, file);
    }
    if (frame.source_line > 0) {
      json->Key("line");
      json->Int(frame.source_line);
    }
    json->EndObject();
  }
  json->EndArray();
  json->EndObject();
}

void WriteThread(const Profile& profile, const ProfileThread& thread, JsonWriter* json) {
  json->StartObject();
  json->Key("type");
  json->String("sampled");
  json->Key("name");
  JsonText(*json, ThreadLabel(thread.name, thread.tid));
  json->Key("unit");
  json->String(profile.weight_unit == WeightUnit::kNanoseconds ? "nanoseconds" : "none");
  json->Key("startValue");
  json->Uint64(0);
  json->Key("endValue");
  json->Uint64(thread.cost.weight);

  json->Key("samples");
  json->StartArray();
  std::vector<std::uint32_t> path;  // nodes, root first
  for (std::uint32_t i = thread.first_node; i < thread.first_node + thread.node_count; ++i) {
    const ProfileNode& node = profile.nodes[i];
    if (node.frame != kNoFrame) {
      while (path.back() != node.parent) path.pop_back();
    }
    path.push_back(i);
    if (node.self.samples == 0) continue;
    json->StartArray();
    for (const std::uint32_t at : path) {
      if (profile.nodes[at].frame != kNoFrame) json->Uint(profile.nodes[at].frame);
    }
    json->EndArray();
  }
  json->EndArray();

  json->Key("weights");
  json->StartArray();
  for (const ProfileNode& node : profile.NodesOf(thread)) {
    if (node.self.samples != 0) json->Uint64(node.self.weight);
  }
  json->EndArray();
  json->EndObject();
}

}  // namespace

void WriteSpeedscope(const Profile& profile, const ExportOptions& options, Output* output) {
  JsonStream stream(output);
  JsonWriter json(stream);
  json.StartObject();
  json.Key("$schema");
  json.String("https://www.speedscope.app/file-format-schema.json");
  json.Key("name");
  JsonText(json, options.title);
  json.Key("exporter");
  json.String("stackpipe");
  json.Key("activeProfileIndex");
  json.Uint(0);  // the heaviest thread
  WriteFrames(profile, &json);
  json.Key("profiles");
  json.StartArray();
  for (const ProfileThread& thread : profile.threads) WriteThread(profile, thread, &json);
  json.EndArray();
  json.EndObject();
  output->Put('\n');
}

}  // namespace stackpipe
