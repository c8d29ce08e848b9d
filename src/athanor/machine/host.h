// What this host has: memory that is free, its caches, its processor's name.
//
// Called by train before anything large is allocated. Thread safety: pure queries.
#pragma once

#include <cstdint>
#include <string>

namespace athanor {

int64_t available_memory_bytes();  // MemAvailable, or what is left of a cgroup's limit if that is less
// What the cgroup whose files are in `folder` (of version 2 or 1) lets its processes allocate besides; the
// largest number where it has no limit.
int64_t cgroup_free_bytes(const std::string& folder);
int64_t peak_resident_memory_bytes();
int64_t last_cache_bytes();  // of the largest cache; 0 if the system does not say
std::string processor_name();

}  // namespace athanor
