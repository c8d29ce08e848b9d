#include "athanor/base/file_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <string>

#include "athanor/base/error.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// The same behaviour is asked of the real environment and of the one in memory.
void check_environment(FileEnvironment& files, const std::string& root) {
  const std::string folder = join_path(root, "a/b"), path = join_path(folder, "file");
  EXPECT_FALSE(files.exists(folder));
  files.make_directories(folder);
  files.make_directories(folder);  // again is no error
  EXPECT_TRUE(files.status(folder)->is_directory);
  EXPECT_FALSE(files.exists(path));

  auto file = files.create(path, {});
  file->append(bytes_of("hello "));
  file->append(bytes_of("world"));
  file->write_at(0, bytes_of("J"));
  EXPECT_EQ(file->size(), 11);
  file->sync();
  file->close();
  EXPECT_EQ(files.status(path)->size, 11);
  EXPECT_FALSE(files.status(path)->is_directory);
  EXPECT_EQ(read_file(files, path, 100), "Jello world");

  file = files.create(path, {.mode = CreateMode::append});
  EXPECT_EQ(file->size(), 11);
  file->append(bytes_of("!"));
  file->close();
  const auto readable = files.open(path);
  EXPECT_EQ(readable->size(), 12);
  std::string tail(6, ' ');
  readable->read_at(6, std::as_writable_bytes(std::span(tail)));
  EXPECT_EQ(tail, "world!");
  const auto mapped = readable->map();
  ASSERT_EQ(mapped->bytes().size(), 12U);
  EXPECT_EQ(std::to_integer<char>(mapped->bytes()[11]), '!');
  EXPECT_THAT(message_of([&] { readable->read_at(7, std::as_writable_bytes(std::span(tail))); }),
              HasSubstr(path));

  EXPECT_THAT(message_of([&] { files.create(path, {.mode = CreateMode::exclusive}); }), HasSubstr(path));
  EXPECT_THAT(message_of([&] { files.open(folder); }), HasSubstr("folder"));
  EXPECT_THAT(message_of([&] { files.open(join_path(folder, "none")); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { files.remove(join_path(folder, "none")); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { files.create(join_path(root, "nowhere/x"), {}); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { files.make_directories(path); }), HasSubstr(path));

  files.create(join_path(folder, "empty"), {})->close();
  EXPECT_EQ(files.open(join_path(folder, "empty"))->map()->bytes().size(), 0U);
  EXPECT_THAT(message_of([&] { files.rename(path, join_path(folder, "empty"), RenameMode::keep_existing); }),
              HasSubstr("exists"));
  EXPECT_EQ(read_file(files, path, 100), "Jello world!");
  files.rename(path, join_path(folder, "moved"), RenameMode::keep_existing);
  files.rename(join_path(folder, "moved"), join_path(folder, "empty"), RenameMode::replace);
  files.sync_directory(folder);
  EXPECT_THAT(files.list(folder), ElementsAre("empty"));
  EXPECT_EQ(mapped->bytes().size(), 12U);  // an open file outlives its name
  files.remove(join_path(folder, "empty"));
  EXPECT_TRUE(files.list(folder).empty());
  EXPECT_GT(files.free_bytes(folder), 0);
}

TEST(FileEnvironment, RealFilesBehave) {
  const TemporaryFolder folder;
  check_environment(system_files(), folder.path());
}

TEST(FileEnvironment, FilesInMemoryBehaveAlike) {
  MemoryFileEnvironment files;
  check_environment(files, "root");
}

TEST(FileEnvironment, FaultlessWrapperChangesNothing) {
  const TemporaryFolder folder;
  FaultyFileEnvironment files(system_files(), {});
  check_environment(files, folder.path());
}

TEST(FileEnvironment, OffsetsBeyondTwoGibibytes) {
  const TemporaryFolder folder;
  const std::string path = folder.path("sparse");
  constexpr int64_t far = (int64_t{1} << 31) + 5;
  const auto file = system_files().create(path, {});
  file->write_at(far, bytes_of("far away"));
  EXPECT_EQ(file->size(), far + 8);
  file->close();
  const auto readable = system_files().open(path);
  std::string text(8, ' ');
  readable->read_at(far, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "far away");
  EXPECT_EQ(std::to_integer<char>(readable->map()->bytes()[static_cast<size_t>(far)]), 'f');
}

TEST(FileEnvironment, PipesAndDevicesAreRefusedNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { system_files().open(folder.path("pipe")); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { system_files().create(folder.path("pipe"), {}); }), HasSubstr("pipe"));
}

TEST(FileEnvironment, FullDeviceSaysHowManyBytesWereNeeded) {
  const auto file = system_files().create("/dev/full", {.expected_bytes = 4321});
  const std::string message = message_of([&] { file->append(bytes_of("some bytes")); });
  EXPECT_THAT(message, HasSubstr("/dev/full"));
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_THAT(message, HasSubstr("10 bytes at byte 0; the whole file needs 4321 bytes"));
  EXPECT_THAT(message, HasSubstr("hint: free some space"));
}

TEST(FileEnvironment, ReadFileRefusesTheUnreasonable) {
  const TemporaryFolder folder;
  write_file_atomically(system_files(), folder.path("f"), "12345");
  EXPECT_EQ(read_file(system_files(), folder.path("f"), 5), "12345");
  EXPECT_THAT(message_of([&] { read_file(system_files(), folder.path("f"), 4); }), HasSubstr("5 bytes"));
}

TEST(FileEnvironment, Paths) {
  EXPECT_EQ(parent_directory("a/b"), "a");
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_EQ(parent_directory("/"), "/");
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path(".", "b"), "b");
  EXPECT_EQ(join_path("/", "b"), "/b");
}

TEST(AtomicWrite, ReplacesAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  write_file_atomically(system_files(), folder.path("f"), "old");
  write_file_atomically(system_files(), folder.path("f"), "newer");
  EXPECT_EQ(read_file(system_files(), folder.path("f"), 100), "newer");
  EXPECT_THAT(system_files().list(folder.path()), ElementsAre("f"));
}

TEST(AtomicWrite, KeepsAnExistingFileWhenAsked) {
  const TemporaryFolder folder;
  write_file_atomically(system_files(), folder.path("f"), "old");
  const auto writer = [](WritableFile& file) { file.append(bytes_of("new")); };
  EXPECT_THAT(message_of([&] {
                write_file_atomically(system_files(), folder.path("f"), writer,
                                      {.rename = RenameMode::keep_existing});
              }),
              HasSubstr("exists"));
  EXPECT_EQ(read_file(system_files(), folder.path("f"), 100), "old");
}

// A rename would put a file where the device was.
TEST(AtomicWrite, LeavesDevicesPipesAndFoldersAlone) {
  const TemporaryFolder folder;
  const std::string pipe = folder.path("pipe"), link = folder.path("link");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/null", link.c_str()), 0);
  for (const std::string& path : {pipe, link, folder.path(), std::string()}) {
    const std::string message = message_of([&] { write_file_atomically(system_files(), path, "text"); });
    EXPECT_THAT(message, HasSubstr(fmt::format("cannot create '{}': ", path)));
    EXPECT_THAT(message, HasSubstr("hint")) << path;
  }
  EXPECT_TRUE(system_files().status(pipe)->is_special);
  EXPECT_TRUE(system_files().status(link)->is_special);
  EXPECT_THAT(system_files().list(folder.path()), ElementsAre("link", "pipe"));
}

TEST(AtomicWrite, AnyErrorLeavesTheOldFileAndNoTemporary) {
  for (const FileFaults& faults :
       {FileFaults{.disk_bytes = 3}, FileFaults{.fail_write_at = 0}, FileFaults{.fail_sync_at = 0}}) {
    MemoryFileEnvironment memory;
    write_file_atomically(memory, "f", "old");
    FaultyFileEnvironment files(memory, faults);
    const std::string message = message_of([&] { write_file_atomically(files, "f", "something new"); });
    EXPECT_THAT(message, HasSubstr("'f.tmp-"));
    EXPECT_EQ(read_file(memory, "f", 100), "old");
    EXPECT_THAT(memory.list("."), ElementsAre("f"));
    if (faults.disk_bytes != FileFaults::never) {
      EXPECT_THAT(message, HasSubstr("10 bytes at byte 3; the whole file needs 13 bytes"));
    }
  }
}

TEST(AtomicWrite, TooSmallADiskIsRefusedBeforeTheFirstByte) {
  MemoryFileEnvironment memory;
  FaultyFileEnvironment files(memory, {.disk_bytes = 12, .announce_full = true});
  const std::string message = message_of([&] { write_file_atomically(files, "f", "something new"); });
  EXPECT_THAT(message, HasSubstr("the file needs 13 bytes, 12 are free"));
  EXPECT_TRUE(files.log().empty());
}

// Kills at every operation, with every kind of loss: the name holds the old text or the new one, whole.
// After the last operation only the new one will do.
TEST(AtomicWrite, KilledAnywhereTheFileIsOldOrNew) {
  std::vector<std::string> log;
  {
    MemoryFileEnvironment memory;
    FaultyFileEnvironment files(memory, {});
    write_file_atomically(files, "f", "a text of the new kind");
    log = files.log();
  }
  ASSERT_EQ(log.size(), 5U);
  const std::string temporary = fmt::format("f.tmp-{}-0", ::getpid());
  EXPECT_THAT(log, ElementsAre("create " + temporary, "write " + temporary, "sync " + temporary, "rename f",
                               "sync_directory ."));
  for (const auto loss :
       {CrashLoss::nothing, CrashLoss::contents_not_synced, CrashLoss::everything_not_synced}) {
    std::set<std::string> seen;
    for (int64_t kill_at = 0; kill_at <= static_cast<int64_t>(log.size()); ++kill_at) {
      for (const bool tear : {false, true}) {
        MemoryFileEnvironment memory;
        write_file_atomically(memory, "f", "old");
        FaultyFileEnvironment files(memory, {.kill_at = kill_at, .tear = tear});
        try {
          write_file_atomically(files, "f", "a text of the new kind");
        } catch (const ProcessKilled&) {
          EXPECT_TRUE(files.killed());
        }
        memory.crash(loss);
        const std::string text = read_file(memory, "f", 100);
        EXPECT_TRUE(text == "old" || text == "a text of the new kind") << kill_at << ": " << text;
        if (!files.killed()) {
          EXPECT_EQ(text, "a text of the new kind");
        }
        seen.insert(text);
        for (const auto& name : memory.list(".")) EXPECT_TRUE(name == "f" || is_temporary_name(name));
        // Whatever was left does not hinder the next attempt.
        write_file_atomically(memory, "f", "next");
        EXPECT_EQ(read_file(memory, "f", 100), "next");
      }
    }
    EXPECT_EQ(seen.size(), 2U);
  }
}

TEST(FaultyFileEnvironment, TearsAWriteAndIsDeadAfterwards) {
  MemoryFileEnvironment memory;
  FaultyFileEnvironment files(memory, {.kill_at = 1, .tear = true});
  const auto file = files.create("f", {});
  EXPECT_THROW(file->append(bytes_of("12345678")), ProcessKilled);
  EXPECT_EQ(read_file(memory, "f", 100), "1234");
  EXPECT_THROW(file->sync(), ProcessKilled);
  EXPECT_THROW(files.open("f"), ProcessKilled);
  EXPECT_THROW(files.list("."), ProcessKilled);
}

TEST(FaultyFileEnvironment, FlipsBitsForReadsAndMaps) {
  MemoryFileEnvironment memory;
  write_file_atomically(memory, "victim", "abcd");
  write_file_atomically(memory, "other", "abcd");
  FaultyFileEnvironment files(memory, {.flip = BitFlip{.name_contains = "victim", .byte = 2, .mask = 2}});
  EXPECT_EQ(read_file(files, "victim", 100), "abad");
  EXPECT_EQ(read_file(files, "other", 100), "abcd");
  EXPECT_EQ(std::to_integer<char>(files.open("victim")->map()->bytes()[2]), 'a');
  EXPECT_EQ(read_file(memory, "victim", 100), "abcd");
}

TEST(FaultyFileEnvironment, ReadFaultAndSlowSync) {
  MemoryFileEnvironment memory;
  write_file_atomically(memory, "f", "abcd");
  FaultyFileEnvironment files(memory, {.fail_read_at = 1, .sync_delay = std::chrono::milliseconds(20)});
  EXPECT_EQ(read_file(files, "f", 100), "abcd");
  EXPECT_THAT(message_of([&] { read_file(files, "f", 100); }), HasSubstr("Input/output error"));
  const auto before = std::chrono::steady_clock::now();
  write_file_atomically(files, "g", "x");
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
}

TEST(MemoryFileEnvironment, LosesWhatWasNotSynced) {
  MemoryFileEnvironment files;
  const auto write = [&](const std::string& name, bool sync, bool sync_directory) {
    const auto file = files.create(name, {});
    file->append(bytes_of("text"));
    if (sync) file->sync();
    if (sync_directory) files.sync_directory(".");
  };
  write("synced", true, true);
  write("contents", false, true);
  write("name", true, false);
  files.crash(CrashLoss::everything_not_synced);
  EXPECT_THAT(files.list("."), ElementsAre("contents", "synced"));
  EXPECT_EQ(read_file(files, "synced", 100), "text");
  EXPECT_EQ(read_file(files, "contents", 100), "");
}

}  // namespace
}  // namespace athanor
