#include "athanor/machine/host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

namespace athanor {

namespace {

// The number behind `key` in a file of /proc or of a cgroup; -1 if absent.
int64_t number_behind(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    int64_t value = -1;
    if (word == key) return file >> value ? value : -1;
  }
  return -1;
}

int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

int64_t cgroup_free_bytes(const std::string& folder) {
  struct Files {
    const char *limit, *usage, *statistics, *unused_cache;
  };
  constexpr Files versions[] = {{"/memory.max", "/memory.current", "/memory.stat", "inactive_file"},
                                {"/memory/memory.limit_in_bytes", "/memory/memory.usage_in_bytes",
                                 "/memory/memory.stat", "total_inactive_file"}};
  for (const Files& files : versions) {
    const int64_t limit = read_number(folder + files.limit), usage = read_number(folder + files.usage);
    if (limit <= 0 || usage < 0) continue;
    // Usage counts pages of files too; those that nobody uses give way.
    const int64_t cache = number_behind(folder + files.statistics, files.unused_cache);
    return std::clamp<int64_t>(limit - usage + std::max<int64_t>(0, cache), 0, limit);
  }
  return std::numeric_limits<int64_t>::max();
}

int64_t available_memory_bytes() {
  const int64_t kilobytes = number_behind("/proc/meminfo", "MemAvailable:");
  return std::min(kilobytes >= 0 ? kilobytes * 1024 : std::numeric_limits<int64_t>::max(),
                  cgroup_free_bytes("/sys/fs/cgroup"));
}

int64_t peak_resident_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

int64_t last_cache_bytes() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t kilobytes = 0;
    if (file >> kilobytes) largest = std::max(largest, kilobytes * 1024);
  }
  return largest;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (const size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

}  // namespace athanor
