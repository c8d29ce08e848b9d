// The bandwidth of reading memory on this machine, measured: what generation of one token at a time is a
// share of.
//
// Called by benchmarks. Thread safety: uses the team it is given.
#pragma once

#include <cstddef>
#include <span>

#include "athanor/device/thread_team.h"

namespace athanor::cpu {

// Bytes a second of the best of several passes over the buffer, every thread of the team reading pieces of it
// in order, one or four at a time. The buffer must have been written, and be several times as large as the
// last cache, or it is that cache which is measured.
double read_bandwidth(ThreadTeam& team, std::span<const std::byte> buffer);

}  // namespace athanor::cpu
