#include "athanor/machine/host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

namespace athanor {

namespace {

// "Key:   123 kB" lines of a /proc file, in bytes; -1 if absent.
int64_t proc_kilobytes(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return -1;
}

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

// What a cgroup (version 2, then 1) still lets this process allocate; no limit: the largest number.
int64_t cgroup_free_bytes() {
  constexpr const char* files[][2] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit_file, usage_file] : files) {
    const int64_t limit = read_number(limit_file), usage = read_number(usage_file);
    if (limit > 0 && usage >= 0) return std::max<int64_t>(0, limit - usage);
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t available_memory_bytes() {
  const int64_t free = proc_kilobytes("/proc/meminfo", "MemAvailable:");
  return std::min(free >= 0 ? free : std::numeric_limits<int64_t>::max(), cgroup_free_bytes());
}

int64_t resident_memory_bytes() {
  return std::max<int64_t>(0, proc_kilobytes("/proc/self/status", "VmRSS:"));
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
