// SPDX-License-Identifier: MIT
#include "export/exporter.h"

#include <gtest/gtest.h>
#include <rapidjson/document.h>

#include "profile/builder.h"
#include "profile/test_trace.h"

namespace stackpipe {
namespace {

class ExporterTest : public testing::Test {
 protected:
  void SetUp() override {
    trace_.SessionStart();
    trace_.ModuleLoad(7, "/opt/demo.dll");
    trace_.ThreadName(11, "wor;ker");
    trace_.Load(TestTrace::Method(1, 0x1000, 0x100, "Root"));
    trace_.CodeInfo(2, CodeKind::kInterpreter, "/src/leaf.cs", 42);
    trace_.Load(TestTrace::Method(2, 0x2000, 0x100, "Leaf;x\ny"));
    trace_.CodeInfo(3, CodeKind::kNative);
    trace_.Load(TestTrace::Method(3, 0x3000, 0x100, "</script><b>&\xe2\x80\xa8"));
  }
  std::string Export(const char* format) {
    const Profile profile = builder_.Finish(GoodEnd());
    StringOutput output;
    FindExporter(format)->write(profile, {.title = "a <title> & more"}, &output);
    EXPECT_TRUE(output.Finish().ok());
    return output.text();
  }

  ProfileBuilder builder_;
  TestTrace trace_{&builder_};
};

TEST_F(ExporterTest, FormatsAreFoundByName) {
  for (const Exporter& exporter : Exporters()) EXPECT_EQ(FindExporter(exporter.name), &exporter);
  EXPECT_EQ(FindExporter("svg"), nullptr);
  EXPECT_EQ(FindExporter(""), nullptr);
}

TEST_F(ExporterTest, CollapsedHasOneLineForEachStack) {
  trace_.Sample(11, {0x2000, 0x1000}, TestTrace::Weighted(30));
  trace_.Sample(11, {0x2004, 0x1000}, TestTrace::Weighted(5, nettrace::kSampleInKernel));
  trace_.Sample(11, {0x1000}, TestTrace::Weighted(7));
  trace_.Sample(11, {0xdef, 0x1000}, TestTrace::Weighted(3));
  trace_.Sample(12, {0xabc}, TestTrace::Weighted(2));
  EXPECT_EQ(Export("collapsed"),
            "[wor:ker tid=11];Demo.Root(int32)_[j] 7\n"
            "[wor:ker tid=11];Demo.Root(int32)_[j];Demo.Leaf:x y(int32)_[0] 30\n"
            "[wor:ker tid=11];Demo.Root(int32)_[j];Demo.Leaf:x y(int32)_[0];[kernel]_[k] 5\n"
            "[wor:ker tid=11];Demo.Root(int32)_[j];0xdef 3\n"
            "[thread tid=12];0xabc 2\n");
}

TEST_F(ExporterTest, SpeedscopeHasOneProfileForEachThread) {
  trace_.Sample(11, {0x2000, 0x1000}, TestTrace::Weighted(30));
  trace_.Sample(11, {0x1000}, TestTrace::Weighted(7));
  trace_.Sample(11, {0xdef, 0x1000}, TestTrace::Weighted(3));
  trace_.Sample(12, {0xabc}, TestTrace::Weighted(2));
  rapidjson::Document json;
  json.Parse(Export("speedscope").c_str());
  ASSERT_TRUE(json.IsObject());
  EXPECT_STREQ(json["name"].GetString(), "a <title> & more");
  ASSERT_EQ(json["profiles"].Size(), 2u);
  const auto& profile = json["profiles"][0];
  EXPECT_STREQ(profile["type"].GetString(), "sampled");
  EXPECT_STREQ(profile["name"].GetString(), "wor;ker (11)");
  EXPECT_STREQ(profile["unit"].GetString(), "nanoseconds");
  EXPECT_EQ(profile["endValue"].GetUint64(), 40u);
  ASSERT_EQ(profile["samples"].Size(), 3u);
  ASSERT_EQ(profile["weights"].Size(), 3u);
  // Root first: the shorter stack, then the longer ones.
  ASSERT_EQ(profile["samples"][0].Size(), 1u);
  ASSERT_EQ(profile["samples"][1].Size(), 2u);
  EXPECT_EQ(profile["weights"][0].GetUint64(), 7u);
  EXPECT_EQ(profile["weights"][1].GetUint64(), 30u);
  ASSERT_EQ(profile["samples"][2].Size(), 2u);
  EXPECT_EQ(profile["samples"][2][0], profile["samples"][1][0]);
  const auto& frames = json["shared"]["frames"];
  const auto& root = frames[profile["samples"][1][0].GetUint()];
  const auto& leaf = frames[profile["samples"][1][1].GetUint()];
  EXPECT_STREQ(root["name"].GetString(), "Demo.Root(int32)");
  EXPECT_STREQ(root["file"].GetString(), "demo.dll");
  EXPECT_STREQ(leaf["file"].GetString(), "/src/leaf.cs");
  EXPECT_EQ(leaf["line"].GetInt(), 42);
  EXPECT_EQ(json["profiles"][1]["weights"][0].GetUint64(), 2u);
}

TEST_F(ExporterTest, SpeedscopeCountsSamplesWhereThereIsNoTime) {
  trace_.Sample(11, {0x1000}, TestTrace::Weighted(0));
  rapidjson::Document json;
  json.Parse(Export("speedscope").c_str());
  EXPECT_STREQ(json["profiles"][0]["unit"].GetString(), "none");
  EXPECT_EQ(json["profiles"][0]["weights"][0].GetUint64(), 1u);
}

// What a browser would find as the data of the page.
std::string PageData(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t start = html.find(open) + open.size();
  return html.substr(start, html.find("</script", start) - start);
}

TEST_F(ExporterTest, FlamegraphHoldsTheTree) {
  trace_.Sample(11, {0x2000, 0x1000}, TestTrace::Weighted(30));
  trace_.Sample(11, {0x1000}, TestTrace::Weighted(7));
  rapidjson::Document json;
  json.Parse(PageData(Export("flamegraph")).c_str());
  ASSERT_TRUE(json.IsObject());
  EXPECT_STREQ(json["unit"].GetString(), "ns");
  EXPECT_STREQ(json["mode"].GetString(), "cpu");
  EXPECT_TRUE(json["complete"].GetBool());
  const auto& thread = json["threads"][0];
  EXPECT_STREQ(thread["name"].GetString(), "wor;ker");
  const auto& nodes = thread["nodes"];
  ASSERT_EQ(nodes.Size(), 10u);
  const auto& root = json["frames"][nodes[0].GetUint()];
  EXPECT_STREQ(root[0].GetString(), "Demo.Root(int32)");
  EXPECT_STREQ(json["modules"][root[1].GetUint()].GetString(), "demo.dll");
  EXPECT_STREQ(json["kinds"][root[2].GetUint()].GetString(), "jit");
  EXPECT_EQ(nodes[1].GetUint(), 1u);  // its parent is the root of the thread
  EXPECT_EQ(nodes[2].GetUint64(), 7u);
  EXPECT_EQ(nodes[3].GetUint64(), 1u);
  const auto& leaf = json["frames"][nodes[5].GetUint()];
  EXPECT_STREQ(json["kinds"][leaf[2].GetUint()].GetString(), "interpreter");
  EXPECT_EQ(nodes[6].GetUint(), 1u);
  EXPECT_EQ(nodes[7].GetUint64(), 30u);
}

TEST_F(ExporterTest, FlamegraphLetsNoNameOutOfItsString) {
  trace_.Sample(11, {0x3000}, TestTrace::Weighted(30));
  const std::string html = Export("flamegraph");
  const std::string data = PageData(html);
  rapidjson::Document json;
  json.Parse(data.c_str());
  ASSERT_TRUE(json.IsObject());  // so the name did not end the script
  EXPECT_STREQ(json["frames"][0][0].GetString(), "</script><b>&\xe2\x80\xa8");
  EXPECT_EQ(data.find_first_of("<>&"), std::string::npos);
  for (const char c : data) EXPECT_GE(c, ' ');  // nothing but ASCII
  EXPECT_NE(html.find("<title>a &lt;title&gt; &amp; more</title>"), std::string::npos);
}

TEST_F(ExporterTest, FlamegraphNeedsNothingFromOutside) {
  const std::string html = Export("flamegraph");
  for (const char* reference :
       {"<script src", "<link rel=\"stylesheet\"", "@import", "url(", "<img", "<iframe"}) {
    EXPECT_EQ(html.find(reference), std::string::npos) << reference;
  }
  EXPECT_EQ(html.find("@@"), std::string::npos);  // no placeholder was forgotten
}

TEST_F(ExporterTest, CollapsedOfNothingIsEmpty) { EXPECT_EQ(Export("collapsed"), ""); }

TEST(EmptyExportTest, IsWellFormed) {
  const Profile profile;
  for (const char* format : {"speedscope", "flamegraph"}) {
    StringOutput output;
    FindExporter(format)->write(profile, {}, &output);
    ASSERT_TRUE(output.Finish().ok());
    rapidjson::Document json;
    const std::string& text = output.text();
    json.Parse(text[0] == '{' ? text.c_str() : PageData(text).c_str());
    EXPECT_TRUE(json.IsObject()) << format;
  }
}

}  // namespace
}  // namespace stackpipe
