#include "athanor/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "athanor/base/error_test_support.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The live state of a tiny run: two weights with their moments.
struct Live {
  std::vector<float> weight = std::vector<float>(6, 0.0F), bias = std::vector<float>(3, 0.0F);
  std::vector<float> weight_moment = std::vector<float>(6, 0.0F), bias_moment = std::vector<float>(3, 0.0F);

  static Live at(int64_t step) {
    Live live;
    float value = static_cast<float>(step);
    for (auto* array : {&live.weight, &live.bias, &live.weight_moment, &live.bias_moment}) {
      for (auto& element : *array) element = value += 0.125F;
    }
    return live;
  }
  std::vector<TensorBytes> views() const {
    return {{"weight", DType::fp32, {2, 3}, std::as_bytes(std::span(weight))},
            {"bias", DType::fp32, {3}, std::as_bytes(std::span(bias))},
            {"weight.moment1", DType::fp32, {2, 3}, std::as_bytes(std::span(weight_moment))},
            {"bias.moment1", DType::fp32, {3}, std::as_bytes(std::span(bias_moment))}};
  }
  std::vector<TensorTarget> targets() {
    return {{"weight", DType::fp32, {2, 3}, std::as_writable_bytes(std::span(weight))},
            {"bias", DType::fp32, {3}, std::as_writable_bytes(std::span(bias))},
            {"weight.moment1", DType::fp32, {2, 3}, std::as_writable_bytes(std::span(weight_moment))},
            {"bias.moment1", DType::fp32, {3}, std::as_writable_bytes(std::span(bias_moment))}};
  }
  friend bool operator==(const Live&, const Live&) = default;
};

CheckpointState state_at(int64_t step) {
  return {{"data", fmt::format("consumed_samples {}", 8 * step)}, {"config", "a = \"ü\"\n"}};
}

SaveReport save(FileEnvironment& files, int64_t step, int64_t keep_last = 10) {
  CheckpointFolder folder(files, "run/checkpoints", {.keep_last = keep_last});
  return folder.save(step, Live::at(step).views(), state_at(step));
}

LatestCheckpoint find(FileEnvironment& files) {
  return CheckpointFolder(files, "run/checkpoints", {}).find_latest();
}

void expect_step(const std::optional<Checkpoint>& checkpoint, int64_t step) {
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(checkpoint->step(), step);
  EXPECT_EQ(checkpoint->state(), state_at(step));
  Live live;
  EXPECT_TRUE(checkpoint->load(live.targets(), LoadMode::strict).empty());
  EXPECT_EQ(live, Live::at(step));
}

std::string path_of(int64_t step) {
  return fmt::format("run/checkpoints/step_{:08}.safetensors", step);
}

void flip_last_bit(FileEnvironment& files, const std::string& path) {
  std::string bytes = read_file(files, path, 1 << 20);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(files, path, bytes);
}

std::string all_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

TEST(Checkpoint, SavesAndLoads) {
  const TemporaryFolder temporary;
  CheckpointFolder folder(system_files(), temporary.path("a/checkpoints"), {});
  EXPECT_FALSE(folder.find_latest().checkpoint.has_value());
  const SaveReport report = folder.save(10, Live::at(10).views(), state_at(10));
  EXPECT_EQ(report.path, temporary.path("a/checkpoints/step_00000010.safetensors"));
  EXPECT_EQ(report.bytes, system_files().status(report.path)->size);
  EXPECT_EQ(read_file(system_files(), temporary.path("a/checkpoints/latest"), 100),
            "step_00000010.safetensors\n");
  const auto latest = folder.find_latest();
  expect_step(latest.checkpoint, 10);
  EXPECT_THAT(latest.notes, IsEmpty());
  EXPECT_THAT(latest.rejected, IsEmpty());
}

TEST(Checkpoint, LargeStepsSortByNumber) {
  MemoryFileEnvironment files;
  for (const int64_t step : {int64_t{99'999'999}, int64_t{100'000'000}, int64_t{5'000'000'000}})
    save(files, step);
  EXPECT_THAT(CheckpointFolder(files, "run/checkpoints", {}).steps(),
              ElementsAre(99'999'999, 100'000'000, 5'000'000'000));
  expect_step(find(files).checkpoint, 5'000'000'000);
}

TEST(Checkpoint, KeepsTheLastFew) {
  MemoryFileEnvironment files;
  for (const int64_t step : {1, 2, 3}) save(files, step, 2);
  EXPECT_THAT(files.list("run/checkpoints"),
              ElementsAre("latest", "step_00000002.safetensors", "step_00000003.safetensors"));
  EXPECT_THAT(save(files, 4, 1).removed, ElementsAre(path_of(2), path_of(3)));
  expect_step(find(files).checkpoint, 4);
  EXPECT_THAT(error_of([&] { CheckpointFolder(files, "x", {.keep_last = 0}); }), HasSubstr("0 checkpoints"));
}

TEST(Checkpoint, NeverDeletesTheOnlySoundOne) {
  MemoryFileEnvironment memory, sound;
  const int64_t last = save(sound, 2, 1).bytes - 1;
  save(memory, 1, 1);
  // What is written comes back damaged: the old one must stay.
  FaultyFileEnvironment files(memory,
                              {.flip = BitFlip{.name_contains = "step_00000002.safetensors", .byte = last}});
  const SaveReport report = save(files, 2, 1);
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_THAT(all_of(report.notes), HasSubstr("old checkpoints are kept"));
  expect_step(find(files).checkpoint, 1);
  // Later files that are damaged do not count as kept ones, and are not touched.
  save(memory, 7, 9);
  flip_last_bit(memory, path_of(7));
  memory.remove(path_of(2));
  save(memory, 3, 1);
  expect_step(find(memory).checkpoint, 3);
  EXPECT_TRUE(memory.exists(path_of(7)));
  EXPECT_FALSE(memory.exists(path_of(1)));
}

TEST(Checkpoint, AFullDiskLeavesTheOldOnes) {
  MemoryFileEnvironment memory, roomy;
  const int64_t needed = save(roomy, 2, 1).bytes;
  save(memory, 1, 1);
  for (const bool announced : {true, false}) {
    FaultyFileEnvironment files(memory, {.disk_bytes = 500, .announce_full = announced});
    const std::string message = error_of([&] { save(files, 2, 1); });
    EXPECT_THAT(message, HasSubstr("No space left on device"));
    EXPECT_THAT(message, HasSubstr(fmt::format("needs {} bytes", needed)));
    EXPECT_THAT(memory.list("run/checkpoints"), ElementsAre("latest", "step_00000001.safetensors"));
    expect_step(find(memory).checkpoint, 1);
  }
}

TEST(Checkpoint, KilledAnywhere_P73_TheLatestCompleteOneIsUsed) {
  std::vector<std::string> log;
  {
    MemoryFileEnvironment memory;
    save(memory, 10, 1);
    FaultyFileEnvironment files(memory, {});
    save(files, 20, 1);
    log = files.log();
  }
  // Every kind of place is there: before the first byte, within the tensors, before the sync, before the
  // rename, between rename and pointer, within the pointer, before the old one goes.
  const auto count_of = [&](const std::string& start) {
    return std::count_if(log.begin(), log.end(), [&](const auto& line) { return line.starts_with(start); });
  };
  EXPECT_EQ(count_of("create step_00000020"), 1);
  EXPECT_GE(count_of("write step_00000020"), 7);
  EXPECT_EQ(count_of("sync step_00000020"), 1);
  EXPECT_EQ(count_of("rename step_00000020.safetensors"), 1);
  EXPECT_EQ(count_of("write latest"), 1);
  EXPECT_EQ(count_of("rename latest"), 1);
  EXPECT_EQ(count_of("remove step_00000010"), 1);
  const auto renamed = std::find(log.begin(), log.end(), "rename step_00000020.safetensors") - log.begin();

  std::set<int64_t> found_steps;
  for (const auto loss :
       {CrashLoss::nothing, CrashLoss::contents_not_synced, CrashLoss::everything_not_synced}) {
    for (int64_t kill_at = 0; kill_at < static_cast<int64_t>(log.size()); ++kill_at) {
      for (const bool tear : {false, true}) {
        SCOPED_TRACE(fmt::format("killed at {} ({}), tear {}, loss {}", kill_at,
                                 log[static_cast<size_t>(kill_at)], tear, static_cast<int>(loss)));
        MemoryFileEnvironment memory;
        save(memory, 10, 1);
        FaultyFileEnvironment files(memory, {.kill_at = kill_at, .tear = tear});
        EXPECT_THROW(save(files, 20, 1), ProcessKilled);
        memory.crash(loss);
        const auto latest = find(memory);
        ASSERT_TRUE(latest.checkpoint.has_value());
        const int64_t step = latest.checkpoint->step();
        found_steps.insert(step);
        // Complete before the rename is lost only with what was not synced; never the other way round.
        EXPECT_TRUE(step == 20 || step == 10);
        if (kill_at <= renamed) {
          EXPECT_EQ(step, 10);
        }
        expect_step(latest.checkpoint, step);
        // It says why: an unfinished save, or a pointer that names another one.
        const std::string notes = all_of(latest.notes);
        if (loss == CrashLoss::nothing && kill_at <= renamed && log[static_cast<size_t>(kill_at)] != log[0] &&
            !log[static_cast<size_t>(kill_at)].starts_with("create step")) {
          EXPECT_THAT(notes, HasSubstr("unfinished save"));
        }
        if (loss == CrashLoss::nothing && step == 20 &&
            read_file(memory, "run/checkpoints/latest", 99) != "step_00000020.safetensors\n") {
          EXPECT_THAT(notes, HasSubstr("the pointer names 'step_00000010.safetensors', but"));
        }
        // And the run goes on from there: the next saves work and clean up.
        if (step == 10) save(memory, 20, 1);
        save(memory, 30, 1);
        expect_step(find(memory).checkpoint, 30);
        EXPECT_THAT(memory.list("run/checkpoints"), ElementsAre("latest", "step_00000030.safetensors"));
      }
    }
  }
  EXPECT_THAT(found_steps, ElementsAre(10, 20));
}

TEST(Checkpoint, HalfAFileUnderTheFinalName_P73_IsPassedOverWithTheReason) {
  MemoryFileEnvironment files;
  save(files, 10);
  save(files, 20);
  const std::string whole = read_file(files, path_of(20), 1 << 20);
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    const auto file = files.create(path_of(20), {});
    file->append(std::as_bytes(std::span(whole)).first(size));
    const auto latest = find(files);
    expect_step(latest.checkpoint, 10);
    ASSERT_THAT(latest.rejected, SizeIs(1));
    EXPECT_EQ(latest.rejected[0].path, path_of(20));
    EXPECT_THAT(all_of(latest.notes), HasSubstr("going back to 'step_00000010.safetensors'"));
    EXPECT_THAT(all_of(latest.notes), HasSubstr(path_of(20)));
  }
}

TEST(Checkpoint, MissingPointer_P76_StepFilesAreFoundAndNeverWrittenOver) {
  MemoryFileEnvironment files;
  save(files, 10);
  files.remove("run/checkpoints/latest");
  const auto latest = find(files);
  expect_step(latest.checkpoint, 10);
  EXPECT_THAT(all_of(latest.notes), HasSubstr("no pointer file 'latest'"));

  CheckpointFolder folder(files, "run/checkpoints", {});
  const std::string before = read_file(files, path_of(10), 1 << 20);
  EXPECT_THAT(error_of([&] { folder.save(10, Live::at(11).views(), {}); }), HasSubstr("not written over"));
  EXPECT_EQ(read_file(files, path_of(10), 1 << 20), before);
  // A run that begins anew beside it is refused at the start, not at its tenth step.
  EXPECT_THAT(error_of([&] { folder.refuse_later_than(0); }), HasSubstr("step_00000010.safetensors"));
  EXPECT_THAT(error_of([&] { folder.refuse_later_than(9); }), HasSubstr("beyond step 9"));
  folder.refuse_later_than(10);
}

TEST(Checkpoint, NothingSoundIsNotAFreshRun) {
  MemoryFileEnvironment files;
  EXPECT_FALSE(find(files).checkpoint.has_value());  // no folder
  files.make_directories("run/checkpoints");
  EXPECT_FALSE(find(files).checkpoint.has_value());  // an empty one
  save(files, 10);
  flip_last_bit(files, path_of(10));
  const std::string message = error_of([&] { find(files); });
  EXPECT_THAT(message, HasSubstr("none is sound"));
  EXPECT_THAT(message, HasSubstr(path_of(10)));
  files.remove(path_of(10));
  EXPECT_THAT(error_of([&] { find(files); }), HasSubstr("the pointer names 'step_00000010.safetensors'"));
}

TEST(Checkpoint, ADamagedFileOfTheSameStepIsSetAside) {
  MemoryFileEnvironment files;
  save(files, 10);
  for (const auto* aside : {".damaged", ".damaged-2"}) {
    save(files, 20);
    flip_last_bit(files, path_of(20));
    const std::string damaged = read_file(files, path_of(20), 1 << 20);
    expect_step(find(files).checkpoint, 10);
    const SaveReport report = save(files, 20);
    EXPECT_THAT(all_of(report.notes), HasSubstr(path_of(20) + aside));
    EXPECT_EQ(read_file(files, path_of(20) + aside, 1 << 20), damaged);
    expect_step(find(files).checkpoint, 20);
    files.remove(path_of(20));
  }
}

TEST(Checkpoint, SavedValuesAreThoseOfTheCall_P77_LaterChangesDoNotReachTheFile) {
  MemoryFileEnvironment memory;
  FaultyFileEnvironment slow(memory, {.write_delay = std::chrono::milliseconds(3)});
  std::vector<float> w = {1.0F}, second = {1.0F};
  int64_t step = 1;
  {
    CheckpointFolder folder(slow, "run/checkpoints", {});
    const std::vector<TensorBytes> views = {{"w", DType::fp32, {1}, std::as_bytes(std::span(w))},
                                            {"x", DType::fp32, {1}, std::as_bytes(std::span(second))}};
    folder.save(step, views, {{"step", fmt::format("{}", step)}});
    w[0] = second[0] = 2.0F;
    step = 2;
  }
  const auto latest = find(memory);
  ASSERT_TRUE(latest.checkpoint.has_value());
  std::vector<float> loaded(2);
  const std::vector<TensorTarget> targets = {
      {"w", DType::fp32, {1}, std::as_writable_bytes(std::span(loaded).first(1))},
      {"x", DType::fp32, {1}, std::as_writable_bytes(std::span(loaded).last(1))}};
  latest.checkpoint->load(targets, LoadMode::strict);
  EXPECT_THAT(loaded, ElementsAre(1.0F, 1.0F));
  EXPECT_EQ(latest.checkpoint->step(), 1);
  EXPECT_EQ(latest.checkpoint->state().at("step"), "1");
}

TEST(Checkpoint, KeysMustAgree_P87_EveryDifferenceIsListed) {
  MemoryFileEnvironment files;
  save(files, 10);
  const auto latest = find(files);
  const Checkpoint& checkpoint = *latest.checkpoint;

  const auto refused = [&](const std::function<void(std::vector<TensorTarget>&)>& change,
                           const std::vector<std::string>& texts) {
    Live live;
    auto targets = live.targets();
    change(targets);
    const std::string message = error_of([&] { checkpoint.load(targets, LoadMode::strict); });
    EXPECT_THAT(message, HasSubstr(path_of(10)));
    for (const auto& text : texts) EXPECT_THAT(message, HasSubstr(text));
    EXPECT_EQ(live, Live()) << "something was loaded before the refusal";
  };
  std::vector<float> more(4);
  const TensorTarget added{"added", DType::fp32, {4}, std::as_writable_bytes(std::span(more))};
  refused([&](auto& targets) { targets.push_back(added); }, {"missing in the file (1): added"});
  refused([](auto& targets) { targets.erase(targets.begin()); }, {"in the file but not wanted (1): weight"});
  refused([](auto& targets) { targets[1].name = "offset"; },
          {"missing in the file (1): offset", "in the file but not wanted (1): bias"});
  refused([](auto& targets) { targets[0].shape = {3, 2}; },
          {"of another shape (1): weight (file [2,3], here [3,2])"});
  refused([](auto& targets) { targets[1].dtype = DType::int32; },
          {"of another type (1): bias (file F32, here I32)"});
  refused([](auto& targets) { targets.erase(targets.begin() + 2, targets.end()); },
          {"in the file but not wanted (2): bias.moment1, weight.moment1"});
  refused([](auto& targets) { targets.clear(); }, {"not wanted (4)"});

  // The relaxed mode loads the rest and gives the lists.
  Live live;
  auto targets = live.targets();
  targets[0].shape = {3, 2};
  targets[1].dtype = DType::int32;
  targets[2].name = "renamed";
  targets.push_back(added);
  const KeyDifferences differences = checkpoint.load(targets, LoadMode::relaxed);
  EXPECT_THAT(differences.missing, ElementsAre("renamed", "added"));
  EXPECT_THAT(differences.extra, ElementsAre("weight.moment1"));
  EXPECT_THAT(differences.wrong_shape, ElementsAre("weight (file [2,3], here [3,2])"));
  EXPECT_THAT(differences.wrong_dtype, ElementsAre("bias (file F32, here I32)"));
  Live expected;
  expected.bias_moment = Live::at(10).bias_moment;
  EXPECT_EQ(live, expected);
}

// A tensor whose values were changed in the file: it must never reach the run, or its NaNs come back after
// every restart.
TEST(Checkpoint, WrongValues_P103_AreRefusedBeforeAnythingLiveIsChanged) {
  MemoryFileEnvironment files;
  save(files, 10);
  save(files, 20);
  std::string bytes = read_file(files, path_of(20), 1 << 20);
  const float huge = 1e30F;
  std::memcpy(bytes.data() + bytes.size() - 8, &huge, 4);  // within weight.moment1, the last by name
  write_file_atomically(files, path_of(20), bytes);

  Live live = Live::at(5);
  const std::string message =
      error_of([&] { Checkpoint::open(files, path_of(20)).load(live.targets(), LoadMode::strict); });
  EXPECT_EQ(live, Live::at(5)) << "something was loaded before the refusal";
  EXPECT_THAT(message, HasSubstr(path_of(20)));
  EXPECT_THAT(message, HasSubstr("checksum of tensor 'weight.moment1'"));

  const auto latest = find(files);
  expect_step(latest.checkpoint, 10);
  ASSERT_THAT(latest.rejected, SizeIs(1));
  EXPECT_THAT(latest.rejected[0].reason, HasSubstr("weight.moment1"));
}

TEST(Checkpoint, ARenamedFileIsRefused) {
  MemoryFileEnvironment files;
  save(files, 10);
  files.rename(path_of(10), path_of(30), RenameMode::replace);
  EXPECT_THAT(error_of([&] { Checkpoint::open(files, path_of(30)); }), HasSubstr("it is of step 10"));
}

TEST(Checkpoint, OtherFilesAreRefused) {
  MemoryFileEnvironment files;
  write_safetensors(files, "weights.safetensors", {}, {{"format", "pt"}});
  EXPECT_THAT(error_of([&] { Checkpoint::open(files, "weights.safetensors"); }), HasSubstr("no checkpoint"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(files, "none"); }), HasSubstr("No such file"));
  write_safetensors(files, "v2", {}, {{"athanor.checkpoint", "2"}});
  EXPECT_THAT(error_of([&] { Checkpoint::open(files, "v2"); }), HasSubstr("version '2'"));
}

TEST(Checkpoint, AnOpenOneOutlivesItsFile) {
  const TemporaryFolder temporary;
  CheckpointFolder folder(system_files(), temporary.path("c"), {.keep_last = 1});
  folder.save(10, Live::at(10).views(), state_at(10));
  const auto latest = folder.find_latest();
  folder.save(20, Live::at(20).views(), state_at(20));
  EXPECT_FALSE(system_files().exists(folder.path_of(10)));
  expect_step(latest.checkpoint, 10);
}

}  // namespace
}  // namespace athanor
