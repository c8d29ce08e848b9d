#include "athanor/machine/host.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

class Cgroup : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    system_files().make_directories(folder.path("memory"));
    write_file_atomically(system_files(), folder.path(name), text);
  }
  int64_t free() const { return cgroup_free_bytes(folder.path()); }
  TemporaryFolder folder;
};

TEST_F(Cgroup, WithoutALimitEverythingIsFree) {
  EXPECT_EQ(free(), unlimited);
  write("memory.max", "max\n");
  write("memory.current", "5000\n");
  EXPECT_EQ(free(), unlimited);
}

// A large file that was read lies in the cache and counts as used.
TEST_F(Cgroup, CacheOfFilesIsFree) {
  write("memory.max", "10000\n");
  write("memory.current", "9000\n");
  EXPECT_EQ(free(), 1000);
  write("memory.stat", "anon 1500\nactive_file 500\ninactive_file 7000\n");
  EXPECT_EQ(free(), 8000);
  write("memory.current", "12000\n");
  EXPECT_EQ(free(), 5000);
  write("memory.stat", "inactive_file 100\n");
  EXPECT_EQ(free(), 0);
}

TEST_F(Cgroup, TheFirstVersionIsKnownToo) {
  write("memory/memory.limit_in_bytes", "10000\n");
  write("memory/memory.usage_in_bytes", "9000\n");
  write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 4000\n");
  EXPECT_EQ(free(), 5000);
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");  // how it writes that there is none
  EXPECT_GT(free(), int64_t{1} << 62);
}

TEST(Host, KnowsWhatItHas) {
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LT(available_memory_bytes(), int64_t{1} << 60);
  EXPECT_GT(peak_resident_memory_bytes(), 1 << 20);
  EXPECT_FALSE(processor_name().empty());
}

}  // namespace
}  // namespace athanor
