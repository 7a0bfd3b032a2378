// SPDX-License-Identifier: MIT
//
// Recorded traces, and what TraceEvent reads out of each (the JSON beside it): counts, and the functions one
// by one.
#include <gtest/gtest.h>
#include <rapidjson/document.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "nettrace/reader.h"
#include "profile/builder.h"

namespace stackpipe {
namespace {

using Counts = std::map<std::string, std::uint64_t>;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Lets only the first samples of a trace through.
class FirstSamples : public nettrace::Visitor {
 public:
  FirstSamples(nettrace::Visitor* to, std::uint64_t limit) : to_(to), left_(limit) {}
  void OnTrace(const nettrace::TraceInfo& info) override { to_->OnTrace(info); }
  void OnEvent(const nettrace::Event& event) override {
    if (event.type->provider == nettrace::kSampleProvider) {
      if (left_ == 0) return;
      --left_;
    }
    to_->OnEvent(event);
  }

 private:
  nettrace::Visitor* to_;
  std::uint64_t left_;
};

// As TraceEvent writes it: the module without .dll or .exe, "ManagedModule" for one that no event told about,
// "?" for a function without a name.
std::string TraceEventName(const Profile& profile, const ProfileFrame& frame) {
  std::string module = profile.modules[frame.module].name;
  for (const std::string end : {".dll", ".exe"}) {
    if (module.ends_with(end)) module.resize(module.size() - end.size());
  }
  if (module.empty() && frame.named) module = "ManagedModule";
  return module + "!" + (frame.named ? frame.name : "?");
}

// Self and inclusive samples of each name, by walking every path: slow and obvious.
struct Functions {
  Counts self, inclusive;
  std::map<std::string, Counts> self_by_thread;
};
Functions CountFunctions(const Profile& profile) {
  Functions functions;
  for (const ProfileThread& thread : profile.threads) {
    for (std::uint32_t i = thread.first_node; i < thread.first_node + thread.node_count; ++i) {
      if (profile.nodes[i].self.samples == 0) continue;
      const std::uint64_t samples = profile.nodes[i].self.samples;
      std::set<std::string> on_stack;
      bool leaf = true;
      for (std::uint32_t at = i; profile.nodes[at].frame != kNoFrame; at = profile.nodes[at].parent) {
        const ProfileFrame& frame = profile.frame_table[profile.nodes[at].frame];
        if (frame.pseudo) continue;
        const std::string name = TraceEventName(profile, frame);
        if (leaf) functions.self[name] += samples;
        if (leaf) functions.self_by_thread[std::to_string(thread.tid)][name] += samples;
        leaf = false;
        on_stack.insert(name);
      }
      for (const std::string& name : on_stack) functions.inclusive[name] += samples;
    }
  }
  return functions;
}

// `expected` has the first rows of a table, the most frequent first.
void ExpectRows(const rapidjson::Value& expected, const Counts& counts, const char* what) {
  constexpr std::size_t kRowLimit = 25;
  for (const auto& row : expected.GetArray()) {
    const std::string name = row[0].GetString();
    ASSERT_TRUE(counts.contains(name)) << what << ": " << name;
    EXPECT_EQ(counts.at(name), row[1].GetUint64()) << what << ": " << name;
  }
  if (expected.Size() < kRowLimit) {
    EXPECT_EQ(counts.size(), expected.Size()) << what;
    return;
  }
  // All that is not listed is not above the last listed one.
  const std::uint64_t last = expected[kRowLimit - 1][1].GetUint64();
  std::size_t above = 0, listed_above = 0;
  for (const auto& [name, count] : counts) above += count > last;
  for (const auto& row : expected.GetArray()) listed_above += row[1].GetUint64() > last;
  EXPECT_EQ(above, listed_above) << what;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Path(const char* end) {
    return std::string(STACKPIPE_GOLDEN_DIR "/") + GetParam() + end;
  }
  static rapidjson::Document Expected() {
    rapidjson::Document json;
    json.Parse(ReadFile(Path(".json")).c_str());
    return json;
  }
  static Profile Load(std::uint64_t first_samples = ~std::uint64_t{0}) {
    auto file = nettrace::OpenFile(Path(".nettrace").c_str());
    EXPECT_TRUE(file.ok()) << Path(".nettrace");
    if (!file.ok()) return {};
    ProfileBuilder builder;
    FirstSamples filter(&builder, first_samples);
    const nettrace::ReadSummary summary = nettrace::Read(*file.value(), filter);
    return builder.Finish(summary);
  }
};

TEST_P(GoldenTest, ReadsWhatTraceEventReads) {
  const rapidjson::Document expected = Expected();
  ASSERT_TRUE(expected.IsObject());
  // TraceEvent drops the block in which a file was cut; its samples are the first ones of the file.
  const Profile profile = Load(expected["samples"].GetUint64());
  EXPECT_EQ(profile.complete, expected["error"].IsNull());
  EXPECT_EQ(profile.cost.samples, expected["samples"].GetUint64());
  EXPECT_EQ(profile.frames, expected["frames"].GetUint64());
  EXPECT_EQ(profile.named_frames, expected["named_frames"].GetUint64());
  EXPECT_EQ(profile.max_depth, expected["max_depth"].GetUint64());
  EXPECT_EQ(profile.undecodable_events, 0u);

  for (const auto& thread : expected["samples_by_thread"].GetObject()) {
    const auto found = std::find_if(
        profile.threads.begin(), profile.threads.end(),
        [&](const ProfileThread& one) { return std::to_string(one.tid) == thread.name.GetString(); });
    ASSERT_NE(found, profile.threads.end()) << thread.name.GetString();
    EXPECT_EQ(found->cost.samples, thread.value.GetUint64());
  }
  EXPECT_EQ(profile.threads.size(), expected["samples_by_thread"].MemberCount());

  const Functions functions = CountFunctions(profile);
  ExpectRows(expected["self"], functions.self, "self");
  ExpectRows(expected["inclusive"], functions.inclusive, "inclusive");
  EXPECT_EQ(functions.self_by_thread.size(), expected["self_by_thread"].MemberCount());
  for (const auto& thread : expected["self_by_thread"].GetObject()) {
    const auto found = functions.self_by_thread.find(thread.name.GetString());
    ASSERT_NE(found, functions.self_by_thread.end()) << thread.name.GetString();
    ExpectRows(thread.value, found->second, thread.name.GetString());
  }
}

TEST_P(GoldenTest, NoSampleInTheFileIsLeftOut) {
  const bool killed = std::string(GetParam()) == "dotnet/killed";
  EXPECT_EQ(Load().cost.samples, killed ? 2439 : Expected()["samples"].GetUint64());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest,
                         testing::Values("tiny_v4", "full_v4", "tiny_v6", "dotnet/async",
                                         "dotnet/cpu-attached", "dotnet/cpu-launched", "dotnet/cpu-norundown",
                                         "dotnet/deep", "dotnet/eventcounters", "dotnet/events",
                                         "dotnet/killed", "dotnet/metrics", "dotnet/threads",
                                         "dotnet/unload"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (!isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace stackpipe
