// SPDX-License-Identifier: MIT
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <algorithm>
#include <string_view>

#include "profile/utf8.h"
#include "stackpipe/report.h"

namespace stackpipe {
namespace {

using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

void Text(Writer* json, const char* key, std::string_view text) {
  json->Key(key);
  json->String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void Number(Writer* json, const char* key, std::uint64_t number) {
  json->Key(key);
  json->Uint64(number);
}

void Loss(Writer* json, const LossTotals& loss) {
  Number(json, "expected", loss.expected);
  Number(json, "recorded", loss.recorded);
  Number(json, "dropped", loss.dropped);
  Number(json, "suppressed", loss.suppressed);
}

void Threads(Writer* json, const Profile& profile) {
  json->Key("threads");
  json->StartArray();
  for (const ProfileThread& thread : profile.threads) {
    json->StartObject();
    Number(json, "tid", thread.tid);
    Text(json, "name", thread.name);
    Number(json, "samples", thread.cost.samples);
    Number(json, "weight", thread.cost.weight);
    Number(json, "external", thread.cost.external);
    if (profile.session.stackpipe) Loss(json, thread.loss);
    json->EndObject();
  }
  json->EndArray();
}

void Session(Writer* json, const Profile& profile) {
  const ProfileSession& session = profile.session;
  Number(json, "pid", profile.process.pid);
  Text(json, "command", profile.process.command_line);
  Text(json, "runtime", session.runtime);
  Text(json, "mode", session.mode);
  Number(json, "period_ns", session.period_ns);
  Number(json, "weight", profile.cost.weight);
  Number(json, "external", profile.cost.external);
  Number(json, "named_frames", profile.named_frames);
  Number(json, "max_depth", profile.max_depth);
  Number(json, "lost_events", profile.lost_events);
  Number(json, "undecodable_events", profile.undecodable_events);
  Number(json, "handler_ns", session.handler_ns);
  Number(json, "handler_p50_ns", session.handler_p50_ns);
  Number(json, "handler_p99_ns", session.handler_p99_ns);
  Number(json, "handler_max_ns", session.handler_max_ns);
  Number(json, "collector_cpu_ns", session.collector_cpu_ns);
  Number(json, "process_cpu_ns", session.process_cpu_ns);
  json->Key("stop_reasons");
  json->StartObject();
  for (std::size_t reason = 0; reason < kStopReasonCount; ++reason) {
    if (profile.stop_reasons[reason] != 0) Number(json, StopReasonName(reason), profile.stop_reasons[reason]);
  }
  json->EndObject();
}

void Rows(Writer* json, const Profile& profile, const ReportOptions& options) {
  const std::vector<ProfileRow> rows = MakeRows(profile, options.by);
  const std::size_t shown = options.limit == 0 ? rows.size() : std::min(rows.size(), options.limit);
  json->Key("rows");
  json->StartArray();
  for (std::size_t i = 0; i < shown; ++i) {
    const ProfileRow& row = rows[i];
    const bool is_thread = options.by == GroupBy::kThread;
    json->StartObject();
    if (is_thread) Number(json, "tid", row.tid);
    Text(json, "name", row.name);
    Text(json, "module", row.module);
    Text(json, "kind", is_thread ? "" : KindName(row.kind));
    Number(json, "self", row.self.weight);
    Number(json, "total", row.total.weight);
    Number(json, "self_samples", row.self.samples);
    Number(json, "total_samples", row.total.samples);
    Number(json, "self_external", row.self.external);
    Number(json, "total_external", row.total.external);
    json->EndObject();
  }
  json->EndArray();
}

}  // namespace

std::string ReportJson(const Profile& profile, const ReportOptions& options) {
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  json.StartObject();
  Text(&json, "file", ValidUtf8(options.file));
  json.Key("complete");
  json.Bool(profile.complete);
  Number(&json, "duration_ns", profile.duration_ns);
  Number(&json, "samples", profile.cost.samples);
  Loss(&json, profile.loss);
  Number(&json, "frames", profile.frames);
  Number(&json, "managed_frames", profile.managed_frames);
  Number(&json, "managed_named", profile.managed_named);
  Text(&json, "weight_unit", UnitName(profile.weight_unit));
  Threads(&json, profile);
  Session(&json, profile);
  static constexpr const char* kBy[] = {"function", "thread", "module"};
  Text(&json, "by", kBy[static_cast<std::size_t>(options.by)]);
  Rows(&json, profile, options);
  json.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize()) + '\n';
}

}  // namespace stackpipe
