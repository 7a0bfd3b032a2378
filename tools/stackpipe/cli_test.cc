// SPDX-License-Identifier: MIT
//
// The tool as it is run: exit codes, and what it says when something is wrong.
#include <gtest/gtest.h>
#include <rapidjson/document.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class CommandLineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/cli_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  // `arguments` is shell text.
  Outcome Run(const std::string& arguments) const {
    const fs::path out = directory_ / "stdout", err = directory_ / "stderr";
    const std::string redirect = arguments.find('>') == std::string::npos ? " >'" + out.string() + "'" : "";
    const int status = std::system(
        (STACKPIPE_TOOL " " + arguments + redirect + " 2>'" + err.string() + "' </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(out), ReadFile(err)};
  }
  std::string Path(const char* name) const { return (directory_ / name).string(); }
  std::string Write(const char* name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  static std::string Golden(const std::string& name) { return STACKPIPE_GOLDEN_DIR "/" + name; }

  fs::path directory_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(CommandLineTest, VersionAndHelpGoToStdout) {
  const Outcome version = Run("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.substr(0, 10), "stackpipe ");
  const Outcome help = Run("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_HAS(help.out, "report");
  EXPECT_HAS(help.out, "export");
  const Outcome of_command = Run("report --help");
  EXPECT_EQ(of_command.exit_code, 0);
  EXPECT_HAS(of_command.out, "--by");
}

TEST_F(CommandLineTest, WrongUsageSaysWhatIsWrongAndWhatToDo) {
  struct Case {
    const char *arguments, *says;
  };
  for (const Case& one : {
           Case{"", "a command is missing"},
           Case{"frobnicate", "there is no command 'frobnicate'"},
           Case{"--frobnicate", "there is no option '--frobnicate'"},
           Case{"report", "FILE"},
           Case{"report x --by colour", "colour"},
           Case{"report x --limit many", "many"},
           Case{"report x --limit -1", "-1"},
           Case{"report x --frobnicate", "--frobnicate"},
           Case{"export x --to collapsed", "--output"},
           Case{"export x -o y", "--to"},
           Case{"export x --to svg -o y",
                "there is no format 'svg'. Formats: collapsed, speedscope, flamegraph"},
       }) {
    const Outcome outcome = Run(one.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << one.arguments;
    EXPECT_EQ(outcome.out, "") << one.arguments;
    EXPECT_HAS(outcome.err, one.says) << one.arguments;
    EXPECT_EQ(outcome.err.substr(0, 11), "stackpipe: ") << one.arguments;
  }
}

TEST_F(CommandLineTest, InputThatIsNoTraceIsAnError) {
  struct Case {
    std::string file;
    const char* says;
  };
  for (const Case& one : {
           Case{Path("none"), "there is no such file"},
           Case{directory_, "is a directory"},
           Case{Write("empty", ""), "is empty"},
           Case{Write("text", "This is a text, and it is long enough to be a header."),
                "is not a nettrace file"},
           Case{Write("short", "Nettr"), "stops before its header ends"},
           Case{Write("header", ReadFile(Golden("full_v4.nettrace")).substr(0, 60)),
                "stops before its header ends"},
       }) {
    for (const std::string& command : {std::string("report "), std::string("report --json "),
                                       "export --to collapsed -o " + Path("out") + " "}) {
      const Outcome outcome = Run(command + "'" + one.file + "'");
      EXPECT_EQ(outcome.exit_code, 1) << command << one.file << outcome.out;
      EXPECT_EQ(outcome.out, "") << command << one.file;
      EXPECT_HAS(outcome.err, one.file + ": ");
      EXPECT_HAS(outcome.err, one.says);
      EXPECT_FALSE(fs::exists(Path("out")));
    }
  }
}

TEST_F(CommandLineTest, UnreadableFileIsAnError) {
  const std::string file = Write("secret", "x");
  fs::permissions(file, fs::perms::none);
  std::string command = STACKPIPE_TOOL;
  if (geteuid() == 0) {
    // Root may read everything: a copy of the tool, where nobody can reach it, runs as nobody.
    fs::permissions(directory_, fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
    fs::copy_file(STACKPIPE_TOOL, Path("tool"));
    command = "setpriv --reuid=65534 --regid=65534 --clear-groups " + Path("tool");
  }
  const std::string err = Path("stderr");
  const int status = std::system((command + " report " + file + " 2>'" + err + "' </dev/null").c_str());
  const Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", ReadFile(err)};
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_HAS(outcome.err, "no permission");
}

TEST_F(CommandLineTest, CutFileIsShownWithAWarning) {
  const std::string whole = ReadFile(Golden("full_v4.nettrace"));
  const std::string file = Write("cut.nettrace", whole.substr(0, whole.size() - 1));
  const Outcome table = Run("report " + file);
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_HAS(table.err, "stackpipe: warning: " + file + ": stops before its end mark");
  EXPECT_HAS(table.out, "Demo.leaf(int32)");
  rapidjson::Document json;
  json.Parse(Run("report --json " + file).out.c_str());
  ASSERT_TRUE(json.IsObject());
  EXPECT_FALSE(json["complete"].GetBool());
  EXPECT_EQ(json["samples"].GetUint64(), 4u);
  const Outcome exported = Run("export --to collapsed -o " + Path("out") + " " + file);
  EXPECT_EQ(exported.exit_code, 0);
  EXPECT_HAS(exported.err, "warning");
  EXPECT_TRUE(fs::exists(Path("out")));
}

// Whatever the place, the tool says something and ends by itself.
TEST_F(CommandLineTest, FileCutAnywhereNeverCrashes) {
  const std::string whole = ReadFile(Golden("tiny_v4.nettrace"));
  ASSERT_FALSE(whole.empty());
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    const Outcome outcome = Run("report --json " + Write("cut", whole.substr(0, size)));
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 1) << size;
    EXPECT_NE(outcome.err, "") << size;
  }
}

TEST_F(CommandLineTest, ReportOfAGoodFile) {
  const Outcome table = Run("report " + Golden("full_v4.nettrace"));
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_EQ(table.err, "");
  EXPECT_HAS(table.out, "Demo.leaf(int32)");
  rapidjson::Document json;
  json.Parse(Run("report --json --by module --limit 0 " + Golden("full_v4.nettrace")).out.c_str());
  ASSERT_TRUE(json.IsObject());
  EXPECT_TRUE(json["complete"].GetBool());
  EXPECT_STREQ(json["rows"][0]["name"].GetString(), "demo.wasm");
}

TEST_F(CommandLineTest, ExportWritesEveryFormat) {
  for (const std::string format : {"collapsed", "speedscope", "flamegraph"}) {
    const Outcome outcome =
        Run("export " + Golden("full_v4.nettrace") + " --to " + format + " -o " + Path("out"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_HAS(ReadFile(Path("out")), "Demo.leaf(int32)");
  }
}

TEST_F(CommandLineTest, OutputThatCannotBeWrittenIsAnError) {
  const std::string trace = Golden("full_v4.nettrace");
  struct Case {
    std::string output;
    const char* says;
  };
  for (const Case& one : {Case{Path("no/such/place"), "No such file or directory"},
                          Case{directory_, "Is a directory"}, Case{"/dev/full", "No space left on device"}}) {
    const Outcome outcome = Run("export " + trace + " --to speedscope -o " + one.output);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_HAS(outcome.err, one.output + ": cannot be written: " + one.says);
  }
  const Outcome report = Run("report " + trace + " >/dev/full");
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_HAS(report.err, "cannot write the report: No space left on device");
}

}  // namespace
