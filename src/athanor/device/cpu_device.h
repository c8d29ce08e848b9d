// The device that runs tasks on the CPU: each stream a thread with its own team.
//
// Called by train and tests. Thread safety: as Device. Threads that have nothing to do yield, then sleep.
#pragma once

#include "athanor/device/queued_device.h"

namespace athanor {

class CpuDevice final : public QueuedDevice {
 public:
  // `cores`: how many cores the teams of this device may count on (see ThreadTeam), 0 for all.
  explicit CpuDevice(int cores = 0);
  std::string name() const override { return "cpu"; }
};

}  // namespace athanor
