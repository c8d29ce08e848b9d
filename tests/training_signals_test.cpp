// The program under signals: it saves, ends or goes on, and what it leaves can be gone on with, bit for bit.

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/checkpoint/checkpoint.h"
#include "support/program.h"

namespace athanor {
namespace {

class Signals : public testing::Test {
 protected:
  Signals() {
    std::string text;
    for (int line = 0; line < 300; ++line) text += fmt::format("Line {} and {}.\n", line, line * line);
    write_file_atomically(system_files(), folder_.path("text.txt"), text);
  }
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {
        "run.name=" + name,  "data.train=text.txt",       "train.schedule=constant", "run.measure_peak=false",
        "sample.length=0",   "validation.every=0",        "data.sequence_length=16", "train.micro_batch=2",
        "model.dropout=0.1", "data.validation_fraction=0"};
    all.insert(all.end(), settings.begin(), settings.end());
    std::vector<std::string> arguments = {ATHANOR_PROGRAM, "train", "--config",
                                          ATHANOR_SOURCE_DIR "/configs/runs/tiny.toml"};
    for (const std::string& setting : all) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  std::vector<std::string> resume(const std::string& name, int64_t steps) const {
    return {ATHANOR_PROGRAM, "train", "--resume",
            "runs/" + name,  "--set", fmt::format("train.steps={}", steps)};
  }
  std::string read(const std::string& name) const {
    const std::string path = folder_.path(name);
    return system_files().exists(path) ? read_file(system_files(), path, 1 << 26) : "";
  }
  int64_t lines(const std::string& name) const {
    const std::string text = read("runs/" + name + "/metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  std::vector<int64_t> checkpoints(const std::string& name) const {
    return CheckpointFolder(system_files(), folder_.path("runs/" + name + "/checkpoints"), {}).steps();
  }
  // Weights, moments and position after `steps`.
  std::map<std::string, std::string> state(const std::string& name, int64_t step) const {
    CheckpointFolder folder(system_files(), folder_.path("runs/" + name + "/checkpoints"), {});
    const Checkpoint checkpoint = Checkpoint::open(system_files(), folder.path_of(step));
    std::map<std::string, std::string> result = checkpoint.state();
    result.erase("configuration");  // names the run
    std::vector<TensorTarget> targets;
    for (const SafetensorsEntry& entry : checkpoint.tensors()) {
      std::string& bytes = result[entry.name];
      bytes.resize(static_cast<size_t>(entry.bytes()));
      targets.push_back({entry.name, *entry.dtype, entry.shape, std::as_writable_bytes(std::span(bytes))});
    }
    checkpoint.load(targets, LoadMode::strict);
    return result;
  }

  // A run that is sent `signal` after a few steps ends well and goes on as if nothing had been.
  void stops_and_goes_on(int signal, const std::string& reason) {
    BackgroundProgram program(train("a", {"train.steps=1G"}), folder_.path());
    ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 3; })) << program.wait(1).errors;
    program.send(signal);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.errors, "");
    const int64_t stopped = lines("a");
    EXPECT_NE(result.output.find(
                  fmt::format("{} at step {} of 1000000000; `--resume runs/a` goes on", reason, stopped)),
              std::string::npos)
        << result.output;
    EXPECT_EQ(checkpoints("a"), std::vector<int64_t>{stopped});
    goes_on_as_if_uninterrupted(stopped + 4);
  }
  void goes_on_as_if_uninterrupted(int64_t steps) {
    const ProgramResult resumed = run_and_wait(resume("a", steps), folder_.path());
    EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
    const ProgramResult whole =
        run_and_wait(train("whole", {fmt::format("train.steps={}", steps)}), folder_.path());
    EXPECT_EQ(whole.exit_code, 0) << whole.errors;
    EXPECT_EQ(lines("a"), steps);
    EXPECT_TRUE(state("a", steps) == state("whole", steps));
  }

  TemporaryFolder folder_;
};

TEST_F(Signals, InterruptSavesAndEnds) {
  stops_and_goes_on(SIGINT, "interrupted");
}
TEST_F(Signals, TermSavesAndEnds) {
  stops_and_goes_on(SIGTERM, "terminated");
}
TEST_F(Signals, HangUpSavesAndEnds) {
  signal(SIGHUP, SIG_DFL);  // whatever this test was started under
  stops_and_goes_on(SIGHUP, "the terminal was closed");
}

TEST_F(Signals, TermBeforeTheFirstStepEndsWell) {
  BackgroundProgram program(train("a", {"train.steps=1G", "run.measure_peak=true"}), folder_.path());
  const std::string configuration =
      folder_.path("runs/a/config.toml");  // written before the peak is measured
  ASSERT_TRUE(program.wait_until([&] { return system_files().exists(configuration); }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("terminated at step"), std::string::npos) << result.output;
  EXPECT_EQ(checkpoints("a").empty(), lines("a") == 0);
}

TEST_F(Signals, UserSignalSavesAndGoesOn) {
  BackgroundProgram program(train("a", {"train.steps=1G", "checkpoint.keep=100"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 2; })) << program.wait(1).errors;
  for (const size_t saves : {1u, 2u}) {
    program.send(SIGUSR1);
    ASSERT_TRUE(program.wait_until([&] { return checkpoints("a").size() == saves; }));
    const int64_t saved = checkpoints("a").back();
    ASSERT_TRUE(program.wait_until([&] { return lines("a") > saved + 2; })) << "it did not go on";
  }
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
  EXPECT_EQ(checkpoints("a").size(), 3u);
  goes_on_as_if_uninterrupted(lines("a") + 1);
}

TEST_F(Signals, ASecondInterruptDoesNotWaitForTheStep) {
  // Steps of a second.
  BackgroundProgram program(train("a", {"train.steps=1G", "train.micro_batch=64", "run.kernels=reference",
                                        "data.sequence_length=64"}),
                            folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 1; })) << program.wait(1).errors;
  // Again and again, since signals that wait to be delivered are one.
  program.wait_until(
      [&] {
        program.send(SIGINT);
        return false;
      },
      20);
  const ProgramResult result = program.wait(20);
  EXPECT_EQ(result.signal, SIGINT) << result.output;
  EXPECT_EQ(checkpoints("a"), std::vector<int64_t>{});
}

// As the power would: whatever was written last, the run goes on from its latest checkpoint.
TEST_F(Signals, AKilledRunGoesOn) {
  BackgroundProgram program(train("a", {"train.steps=1G", "checkpoint.every=5"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 12; })) << program.wait(1).errors;
  program.send(SIGKILL);
  EXPECT_EQ(program.wait().signal, SIGKILL);
  goes_on_as_if_uninterrupted(checkpoints("a").back() + 7);
}

// `athanor train | head -1`
TEST_F(Signals, ARunOutlivesTheReaderOfItsOutput) {
  std::string command;
  for (const std::string& argument : train("a", {"train.steps=40"})) command += "'" + argument + "' ";
  const ProgramResult result =
      run_and_wait({"/bin/sh", "-c", command + "| head -c 1 >/dev/null"}, folder_.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.errors.find("interrupted"), std::string::npos);
  EXPECT_EQ(lines("a"), 40);
  EXPECT_EQ(checkpoints("a"), std::vector<int64_t>{40});
}

// `athanor train >&-`: what is printed must not end up in the first file that is opened.
TEST_F(Signals, ARunNeedsNoStandardStreams) {
  std::string command;
  for (const std::string& argument : train("a", {"train.steps=5"})) command += "'" + argument + "' ";
  const ProgramResult result = run_and_wait({"/bin/sh", "-c", command + "<&- >&- 2>&-"}, folder_.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines("a"), 5);
  EXPECT_EQ(read("runs/a/metrics.jsonl").find("{\"step\":1,"), 0u);
  EXPECT_EQ(checkpoints("a"), std::vector<int64_t>{5});
}

// Token files are mapped; reading one that was cut short raises SIGBUS.
TEST_F(Signals, ATokenFileCutShortEndsTheRun) {
  BackgroundProgram program(train("a", {"train.steps=1G"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 3; })) << program.wait(1).errors;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path("data/cache"))) {
    std::filesystem::resize_file(entry.path(), 128);
  }
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_NE(result.errors.find("cut short while it was read"), std::string::npos) << result.errors;
}

TEST_F(Signals, ARunHasOneProcess) {
  BackgroundProgram program(train("a", {"train.steps=1G", "checkpoint.every=1"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return lines("a") >= 3; })) << program.wait(1).errors;
  const ProgramResult second = run_and_wait(resume("a", 1'000'000'000), folder_.path());
  EXPECT_EQ(second.exit_code, 2) << second.output;
  EXPECT_NE(second.errors.find("another process is writing to runs/a"), std::string::npos) << second.errors;
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
  goes_on_as_if_uninterrupted(lines("a") + 2);
}

TEST_F(Signals, TheTimeLimitCountsEverythingAndGoesOn) {
  const ProgramResult result =
      run_and_wait(train("a", {"train.steps=1G", "run.wall_time_seconds=0.2"}), folder_.path());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("wall-time limit reached at step"), std::string::npos) << result.output;
  ASSERT_GT(lines("a"), 0);
  EXPECT_EQ(checkpoints("a"), std::vector<int64_t>{lines("a")});
  goes_on_as_if_uninterrupted(lines("a") + 2);
}

}  // namespace
}  // namespace athanor
