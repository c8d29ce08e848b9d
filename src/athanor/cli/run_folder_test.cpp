#include "athanor/cli/run_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

class RunFolderTest : public testing::Test {
 protected:
  void make_run(const std::string& name) {
    files_.make_directories(folder_.path(name));
    write_file_atomically(files_, folder_.path(name + "/config.toml"), "# " + name);
  }
  RunOptions options(ExistingRun existing) const {
    RunOptions options;
    options.folder = folder_.path();
    options.name = "demo";
    options.existing = existing;
    return options;
  }
  template <typename Function>
  static std::string refusal(Function&& function) {
    try {
      function();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      return error.what();
    }
    return "accepted";
  }

  FileEnvironment& files_ = system_files();
  TemporaryFolder folder_;
};

TEST_F(RunFolderTest, AFreshNameIsKept) {
  files_.make_directories(folder_.path("demo"));  // a folder without a run is free
  for (const ExistingRun existing : {ExistingRun::number, ExistingRun::resume, ExistingRun::refuse}) {
    RunOptions run = options(existing);
    settle_existing_run(files_, run);
    EXPECT_EQ(run.name, "demo");
    EXPECT_FALSE(run.resume);
  }
}

TEST_F(RunFolderTest, AnExistingRunIsNumberedResumedOrRefused) {
  make_run("demo");
  RunOptions numbered = options(ExistingRun::number);
  settle_existing_run(files_, numbered);
  EXPECT_EQ(numbered.name, "demo-2");
  EXPECT_FALSE(numbered.resume);
  make_run("demo-2");
  files_.make_directories(folder_.path("demo-3"));  // somebody else's
  RunOptions again = options(ExistingRun::number);
  settle_existing_run(files_, again);
  EXPECT_EQ(again.name, "demo-4");

  RunOptions resumed = options(ExistingRun::resume);
  settle_existing_run(files_, resumed);
  EXPECT_EQ(resumed.name, "demo");
  EXPECT_TRUE(resumed.resume);

  RunOptions refused = options(ExistingRun::refuse);
  EXPECT_NE(refusal([&] { settle_existing_run(files_, refused); }).find("already holds a run"),
            std::string::npos);
}

TEST_F(RunFolderTest, TheLatestRunIsTheOneLastWrittenTo) {
  EXPECT_NE(refusal([&] { latest_run(files_, folder_.path()); }).find("--resume FOLDER"), std::string::npos);
  EXPECT_NE(refusal([&] { latest_run(files_, folder_.path("none")); }).find("there is no run"),
            std::string::npos);
  make_run("b");
  make_run("a");
  EXPECT_EQ(latest_run(files_, folder_.path()), folder_.path("a"));
  write_file_atomically(files_, folder_.path("b/metrics.jsonl"), "{}");
  EXPECT_EQ(latest_run(files_, folder_.path()), folder_.path("b"));
  files_.make_directories(folder_.path("no-run"));
  EXPECT_EQ(latest_run(files_, folder_.path()), folder_.path("b"));
}

TEST_F(RunFolderTest, AFolderWithoutARunIsRefusedWithThoseThereAre) {
  make_run("demo");
  EXPECT_NO_THROW(require_run(files_, folder_.path("demo")));
  EXPECT_NE(refusal([&] { require_run(files_, folder_.path("dem")); }).find(folder_.path("demo")),
            std::string::npos);
}

// Whatever else lies beside the runs.
TEST_F(RunFolderTest, WhatCannotBeLookedIntoIsNoRun) {
  make_run("demo");
  std::filesystem::create_symlink("loop", folder_.path("loop"));
  EXPECT_EQ(latest_run(files_, folder_.path()), folder_.path("demo"));
}

TEST(RunOptions, AnEmptyFolderIsTheCurrentOne) {
  RunOptions options;
  options.folder = "";
  options.name = "demo";
  EXPECT_EQ(options.run_folder(), "demo");
}

TEST_F(RunFolderTest, AFolderGivesNameAndParent) {
  RunOptions run;
  set_run_folder(run, "x/y/demo-2//");
  EXPECT_EQ(run.name, "demo-2");
  EXPECT_EQ(run.folder, "x/y");
  set_run_folder(run, "demo");
  EXPECT_EQ(run.run_folder(), "./demo");
  for (const char* wrong : {"", "/", "..", "a/b c"}) {
    EXPECT_NE(refusal([&] { set_run_folder(run, wrong); }), "accepted") << wrong;
  }
}

}  // namespace
}  // namespace athanor
