// SPDX-License-Identifier: MIT
//
// The reader on traces that others wrote, against what TraceEvent reads out of them.
#include <gtest/gtest.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"

namespace stackpipe::nettrace {
namespace {

struct Counts : Visitor {
  std::map<std::string, std::uint64_t> events;
  std::map<std::string, std::uint64_t> samples_by_thread;
  std::uint64_t total = 0, samples = 0, frames = 0, undecoded = 0;
  bool in_order = true;
  std::uint64_t previous = 0;

  void OnEvent(const Event& event) override {
    ++events[event.type->provider + "/" + std::to_string(event.type->event_id)];
    ++total;
    in_order &= event.timestamp >= previous;
    previous = event.timestamp;
    if (event.type->provider == kSampleProvider) {
      ++samples;
      ++samples_by_thread[std::to_string(event.thread_id)];
      frames += event.stack.size();
      Sample sample;
      undecoded += !Decode(event.payload, &sample) || sample.extended;
    }
    Method method;
    Module module;
    const bool rundown = event.type->provider == kRundownProvider;
    if (event.type->provider != kRuntimeProvider && !rundown) return;
    if (event.type->event_id == 143 || event.type->event_id == 144) {
      undecoded +=
          !Decode(event.payload, event.type->version, &method) || method.start == 0 || method.name.empty();
    }
    if (event.type->event_id == (rundown ? 154 : 152)) {
      undecoded += !Decode(event.payload, event.type->version, &module) || module.module_id == 0;
    }
  }
};

class ReaderGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(ReaderGoldenTest, CountsWhatTraceEventCounts) {
  const std::string path = std::string(STACKPIPE_GOLDEN "/") + GetParam();
  std::ifstream json_file(path + ".json");
  std::stringstream json_text;
  json_text << json_file.rdbuf();
  rapidjson::Document json;
  json.Parse(json_text.str().c_str());
  ASSERT_TRUE(json.IsObject());

  Result<std::unique_ptr<ByteSource>> source = OpenFile((path + ".nettrace").c_str());
  ASSERT_TRUE(source.ok());
  Counts counts;
  const ReadSummary summary = Read(*source.value(), counts);

  // TraceEvent does not deliver what is whole in a block that was cut; we do.
  const bool cut = std::string(GetParam()) == "dotnet/killed";
  EXPECT_EQ(summary.complete, !cut) << summary.detail;
  EXPECT_EQ(summary.status.code(), cut ? StatusCode::kTruncated : StatusCode::kOk) << summary.detail;
  EXPECT_EQ(summary.lost, json["lost"].GetUint64());
  EXPECT_EQ(summary.events, counts.total);
  EXPECT_TRUE(counts.in_order);
  EXPECT_EQ(counts.undecoded, 0u);
  if (!cut) {
    EXPECT_EQ(summary.bytes, json["bytes"].GetUint64());
    EXPECT_EQ(counts.total, json["total"].GetUint64());
    EXPECT_EQ(counts.samples, json["samples"].GetUint64());
    EXPECT_EQ(counts.events.size(), json["events"].MemberCount());
    EXPECT_EQ(counts.samples_by_thread.size(), json["samples_by_thread"].MemberCount());
    EXPECT_EQ(counts.frames, json["frames"].GetUint64());
  } else {
    EXPECT_EQ(counts.samples, 2439u);
  }
  const auto expect_counts = [cut](const rapidjson::Value& expected,
                                   std::map<std::string, std::uint64_t>& counted) {
    for (const auto& member : expected.GetObject()) {
      const std::string name = member.name.GetString();
      const std::uint64_t extra = counted[name] - member.value.GetUint64();
      EXPECT_LE(extra, cut ? 100u : 0u) << name << ": " << counted[name];
    }
  };
  expect_counts(json["events"], counts.events);
  expect_counts(json["samples_by_thread"], counts.samples_by_thread);
}

std::string NameOf(const testing::TestParamInfo<const char*>& trace) {
  std::string name = trace.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == '-'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Traces, ReaderGoldenTest,
                         testing::Values("tiny_v4", "full_v4", "tiny_v6", "dotnet/async",
                                         "dotnet/cpu-attached", "dotnet/cpu-launched", "dotnet/cpu-norundown",
                                         "dotnet/deep", "dotnet/eventcounters", "dotnet/events",
                                         "dotnet/killed", "dotnet/metrics", "dotnet/threads",
                                         "dotnet/unload"),
                         NameOf);

}  // namespace
}  // namespace stackpipe::nettrace
