#include "athanor/cli/output_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

class OutputFolderTest : public testing::Test {
 protected:
  std::string path(const std::string& name) { return folder_.path(name); }
  void fill(const std::string& name) {
    system_files().make_directories(path(name + "/sub"));
    write_file_atomically(system_files(), path(name + "/sub/file"), "text");
  }
  TemporaryFolder folder_;
};

TEST_F(OutputFolderTest, StaysWhenKept) {
  {
    OutputFolder output(system_files(), path("a/b"));
    fill("a/b");
    output.keep();
  }
  EXPECT_TRUE(std::filesystem::exists(path("a/b/sub/file")));
}

TEST_F(OutputFolderTest, LeavesNothingOtherwise) {
  const auto use = [&] {
    const OutputFolder output(system_files(), path("new"));
    fill("new");
    throw_user_error("the disk is full", "");
  };
  EXPECT_THROW(use(), Error);
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  std::filesystem::create_directory(path("new"));
  EXPECT_THROW(use(), Error);
  EXPECT_TRUE(std::filesystem::is_empty(path("new")));
}

TEST_F(OutputFolderTest, WhatIsThereIsNotTouched) {
  fill("full");
  EXPECT_THROW(OutputFolder(system_files(), path("full")), Error);
  EXPECT_TRUE(std::filesystem::exists(path("full/sub/file")));
  EXPECT_THROW(OutputFolder(system_files(), path("full/sub/file")), Error);
  EXPECT_THROW(OutputFolder(system_files(), ""), Error);
  OutputFolder first(system_files(), path("one"));
  EXPECT_THROW(OutputFolder(system_files(), path("one")), Error);
}

}  // namespace
}  // namespace athanor
