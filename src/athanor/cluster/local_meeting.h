// How the tasks of a job that all run on one host find each other when nobody has told them where: the first
// one tells the others of its store and of the job's secret, through a local socket that carries the job's
// name.
//
// Called by cli/rank_job.cpp. Thread safety: one thread each.
//
// The socket has no file and ends with its process. Both sides see the other's user, and speak with no other
// one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "athanor/cluster/job_place.h"

namespace athanor {

// Where tasks meet.
struct MeetingPlace {
  std::string store, secret;
  friend bool operator==(const MeetingPlace&, const MeetingPlace&) = default;
};

// The same for all tasks of a job on this host, and another one for each job: by what the manager says of the
// job, or else by the process that started this one.
std::string name_of_job(const Environment& environment, const JobPlace& place);

// The first task's side; others are told as long as it lives.
class LocalMeeting {
 public:
  // Throws a user error if there is one already for a job of this name.
  LocalMeeting(const std::string& job, const MeetingPlace& place);
  ~LocalMeeting();
  LocalMeeting(const LocalMeeting&) = delete;
  LocalMeeting& operator=(const LocalMeeting&) = delete;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// The others' side. Throws Error(restart_worker) if the first task does not come in time, and a user error if
// another user's process has taken its place.
MeetingPlace ask_first_task(const std::string& job, int64_t timeout_ns);

}  // namespace athanor
