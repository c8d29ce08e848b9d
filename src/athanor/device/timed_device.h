// The device that takes the predicted time of each task and computes nothing: how the streams of a program
// overlap can be seen without its kernels.
//
// Called by tests. Thread safety: as Device.
//
// Task::run is never called. Tasks follow each other on exact times: a task begins when it was enqueued, when
// the one before it ended or when the last event it waits for was reached, whichever is latest, and ends
// predicted_ns later; the spans it reports and the events obey these times, however late the system wakes the
// stream's thread. A real thread is never told of an end before that time has come.
#pragma once

#include "athanor/device/queued_device.h"

namespace athanor {

class TimedDevice final : public QueuedDevice {
 public:
  TimedDevice();
  std::string name() const override { return "timed"; }
};

}  // namespace athanor
