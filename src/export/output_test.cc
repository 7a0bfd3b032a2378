// SPDX-License-Identifier: MIT
#include "export/output.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace stackpipe {
namespace {

namespace fs = std::filesystem;

class FileOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/output_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const char* name) const { return directory_ / name; }
  static std::string Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::size_t FileCount() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

TEST_F(FileOutputTest, WritesAllInOneFile) {
  FileOutput output(Path("out"));
  ASSERT_TRUE(output.Open().ok());
  const std::string much(200'000, 'x');
  output.Write("a");
  output.Write(much);
  output.Put('z');
  ASSERT_TRUE(output.Finish().ok());
  EXPECT_EQ(Content(Path("out")), "a" + much + "z");
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(FileOutputTest, OldFileStaysUntilTheNewOneIsWhole) {
  std::ofstream(Path("out")) << "old";
  FileOutput output(Path("out"));
  ASSERT_TRUE(output.Open().ok());
  output.Write(std::string(200'000, 'x'));
  EXPECT_EQ(Content(Path("out")), "old");
  ASSERT_TRUE(output.Finish().ok());
  EXPECT_EQ(Content(Path("out")).size(), 200'000u);
}

TEST_F(FileOutputTest, NothingIsLeftWithoutFinish) {
  {
    FileOutput output(Path("out"));
    ASSERT_TRUE(output.Open().ok());
    output.Write(std::string(200'000, 'x'));
    EXPECT_EQ(FileCount(), 1u);
  }
  EXPECT_EQ(FileCount(), 0u);
}

TEST_F(FileOutputTest, FullDiskIsReported) {
  FileOutput output("/dev/full");
  ASSERT_TRUE(output.Open().ok());
  output.Write("x");
  const Status status = output.Finish();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.os_error(), ENOSPC);
}

TEST_F(FileOutputTest, MissingDirectoryIsReported) {
  FileOutput output(Path("no/such/out"));
  const Status status = output.Open();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.os_error(), ENOENT);
}

TEST_F(FileOutputTest, DirectoryInThePlaceIsReported) {
  FileOutput output(directory_);
  EXPECT_EQ(output.Open().os_error(), EISDIR);
}

TEST_F(FileOutputTest, FollowsASymbolicLink) {
  std::ofstream(Path("real")) << "old";
  fs::create_symlink("real", Path("link"));
  FileOutput output(Path("link"));
  ASSERT_TRUE(output.Open().ok());
  output.Write("new");
  ASSERT_TRUE(output.Finish().ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Content(Path("real")), "new");
}

TEST_F(FileOutputTest, ModeFollowsTheUmask) {
  const mode_t before = umask(022);
  FileOutput output(Path("out"));
  const bool opened = output.Open().ok();
  umask(before);
  ASSERT_TRUE(opened);
  ASSERT_TRUE(output.Finish().ok());
  struct stat info;
  ASSERT_EQ(stat(Path("out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
}

}  // namespace
}  // namespace stackpipe
