// SPDX-License-Identifier: MIT
#include "stackpipe/report.h"

#include <gtest/gtest.h>
#include <rapidjson/document.h>

#include "profile/builder.h"
#include "profile/test_trace.h"

namespace stackpipe {
namespace {

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    trace_.SessionStart("cpu", 1'000'000);
    trace_.ModuleLoad(7, "/opt/demo.dll");
    trace_.ThreadName(11, "worker");
    trace_.Load(TestTrace::Method(1, 0x1000, 0x100, "Root"));
    trace_.Load(TestTrace::Method(2, 0x2000, 0x100, "Leaf"));
    trace_.Sample(11, {0x2000, 0x1000}, TestTrace::Weighted(3'000'000));
    trace_.Sample(11, {0x1000}, TestTrace::Weighted(1'000'000, 2));
    nettrace::SessionEnd end;
    end.totals = {.expected = 4, .recorded = 2, .dropped = 1, .suppressed = 1};
    end.handler_ns = 10'000;
    end.handler_max_ns = 7'000;
    end.collector_cpu_ns = 30'000;
    end.process_cpu_ns = 4'000'000;
    end.duration_ns = 5'000'000;
    trace_.SessionEnd(end);
  }
  rapidjson::Document Json(const ReportOptions& options) {
    rapidjson::Document json;
    json.Parse(ReportJson(builder_.Finish(GoodEnd()), options).c_str());
    return json;
  }

  ProfileBuilder builder_;
  TestTrace trace_{&builder_};
};

// The fields that scripts were promised.
TEST_F(ReportTest, JsonKeepsItsPromise) {
  const rapidjson::Document json = Json({.file = "a.nettrace"});
  ASSERT_TRUE(json.IsObject());
  EXPECT_STREQ(json["file"].GetString(), "a.nettrace");
  EXPECT_TRUE(json["complete"].GetBool());
  EXPECT_EQ(json["duration_ns"].GetUint64(), 5'000'000u);
  EXPECT_EQ(json["samples"].GetUint64(), 2u);
  EXPECT_EQ(json["expected"].GetUint64(), 4u);
  EXPECT_EQ(json["recorded"].GetUint64(), 2u);
  EXPECT_EQ(json["dropped"].GetUint64(), 1u);
  EXPECT_EQ(json["suppressed"].GetUint64(), 1u);
  EXPECT_EQ(json["frames"].GetUint64(), 3u);
  EXPECT_EQ(json["managed_frames"].GetUint64(), 3u);
  EXPECT_EQ(json["managed_named"].GetUint64(), 3u);
  EXPECT_STREQ(json["weight_unit"].GetString(), "ns");
  EXPECT_STREQ(json["by"].GetString(), "function");
  ASSERT_EQ(json["threads"].Size(), 1u);
  const auto& thread = json["threads"][0];
  EXPECT_EQ(thread["tid"].GetUint64(), 11u);
  EXPECT_STREQ(thread["name"].GetString(), "worker");
  EXPECT_EQ(thread["samples"].GetUint64(), 2u);
  EXPECT_EQ(thread["weight"].GetUint64(), 4'000'000u);
  ASSERT_EQ(json["rows"].Size(), 2u);
  const auto& row = json["rows"][1];
  EXPECT_STREQ(row["name"].GetString(), "Demo.Root(int32)");
  EXPECT_STREQ(row["module"].GetString(), "demo.dll");
  EXPECT_STREQ(row["kind"].GetString(), "jit");
  EXPECT_EQ(row["self"].GetUint64(), 1'000'000u);
  EXPECT_EQ(row["total"].GetUint64(), 4'000'000u);
  EXPECT_EQ(row["self_samples"].GetUint64(), 1u);
  EXPECT_EQ(row["total_samples"].GetUint64(), 2u);
  EXPECT_EQ(json["stop_reasons"]["unknown code"].GetUint64(), 1u);
}

TEST_F(ReportTest, JsonRowsMayBeThreadsOrModules) {
  const Profile profile = builder_.Finish(GoodEnd());
  rapidjson::Document json;
  json.Parse(ReportJson(profile, {.by = GroupBy::kThread}).c_str());
  EXPECT_STREQ(json["by"].GetString(), "thread");
  EXPECT_STREQ(json["rows"][0]["name"].GetString(), "worker");
  EXPECT_EQ(json["rows"][0]["tid"].GetUint64(), 11u);
  json.Parse(ReportJson(profile, {.by = GroupBy::kModule}).c_str());
  EXPECT_STREQ(json["by"].GetString(), "module");
  EXPECT_STREQ(json["rows"][0]["name"].GetString(), "demo.dll");
  EXPECT_STREQ(json["rows"][0]["kind"].GetString(), "jit");
}

TEST_F(ReportTest, LimitCutsTheRowsAndZeroDoesNot) {
  const Profile profile = builder_.Finish(GoodEnd());
  rapidjson::Document json;
  json.Parse(ReportJson(profile, {.limit = 1}).c_str());
  EXPECT_EQ(json["rows"].Size(), 1u);
  json.Parse(ReportJson(profile, {.limit = 0}).c_str());
  EXPECT_EQ(json["rows"].Size(), 2u);
  EXPECT_NE(ReportTable(profile, {.limit = 1}).find("... and 1 more; --limit 0 shows all\n"),
            std::string::npos);
  EXPECT_EQ(ReportTable(profile, {.limit = 0}).find("more"), std::string::npos);
}

TEST_F(ReportTest, FileNamesThatAreNoTextStayJson) {
  const rapidjson::Document json = Json({.file = "a\xff.nettrace"});
  ASSERT_TRUE(json.IsObject());
  EXPECT_STREQ(json["file"].GetString(), "a\xef\xbf\xbd.nettrace");
}

TEST_F(ReportTest, TableSaysItAll) {
  EXPECT_EQ(ReportTable(builder_.Finish(GoodEnd()), {}),
            "Program  a program (pid 100)\n"
            "Session  5.00 ms recorded, a sample each 1.00 ms of CPU time, 1 thread\n"
            "Samples  2 samples for 4.00 ms; 1 lost (25.0% of 4)\n"
            "Names    100.0% of 3 managed frames named; 50.0% of stacks incomplete (unknown code 1)\n"
            "Cost     40.0 µs, 1.0% of the program's CPU time; a sample interrupts for 7.00 µs at most\n"
            "\n"
            " SELF            TOTAL           KIND  FUNCTION          MODULE\n"
            "75.0%  3.00 ms   75.0%  3.00 ms  jit   Demo.Leaf(int32)  demo.dll\n"
            "25.0%  1.00 ms  100.0%  4.00 ms  jit   Demo.Root(int32)  demo.dll\n");
}

TEST_F(ReportTest, ThreadTable) {
  const std::string text = ReportTable(builder_.Finish(GoodEnd()), {.by = GroupBy::kThread});
  EXPECT_NE(text.find("  TIME           SAMPLES  THREAD\n"
                      "100.0%  4.00 ms        2  worker (11)\n"),
            std::string::npos)
      << text;
}

TEST(ReportTableTest, SaysThatThereAreNoSamples) {
  EXPECT_NE(ReportTable(Profile(), {}).find("There are no samples in this file."), std::string::npos);
}

}  // namespace
}  // namespace stackpipe
