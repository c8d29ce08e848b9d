#include "athanor/cluster/local_meeting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <map>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

std::string own_job(const char* name) {
  return fmt::format("{} of test {}", name, getpid());
}

TEST(LocalMeeting, TellsAllWhoAskBeforeAndAfterItIsThere) {
  const MeetingPlace place{"127.0.0.1:4000", "secret"};
  const std::string job = own_job("early");
  std::vector<std::future<MeetingPlace>> early;
  for (int i = 0; i < 20; ++i)
    early.push_back(std::async(std::launch::async, [&] { return ask_first_task(job, 30'000'000'000); }));
  const LocalMeeting meeting(job, place);
  for (auto& each : early) EXPECT_EQ(each.get(), place);
  EXPECT_EQ(ask_first_task(job, 30'000'000'000), place);
}

TEST(LocalMeeting, JobsDoNotMeet) {
  const LocalMeeting one(own_job("a"), {"one", "1"}), other(own_job("b"), {"other", "2"});
  EXPECT_EQ(ask_first_task(own_job("a"), 30'000'000'000).store, "one");
  EXPECT_EQ(ask_first_task(own_job("b"), 30'000'000'000).store, "other");
}

TEST(LocalMeeting, ThereIsOneForEachJobAndItEnds) {
  const std::string job = own_job("again");
  for (int round = 0; round < 2; ++round) {
    const LocalMeeting meeting(job, {"store", "secret"});
    EXPECT_THROW(LocalMeeting(job, {"another", "secret"}), Error);
  }
}

TEST(LocalMeeting, LongNamesAreToldApartByTheirEnds) {
  const std::string name = own_job(std::string(300, 'x').c_str());
  const LocalMeeting one(name + "1", {"store 1", "secret"}), two(name + "2", {"store 2", "secret"});
  EXPECT_EQ(ask_first_task(name + "1", 1'000'000'000).store, "store 1");
  EXPECT_EQ(ask_first_task(name + "2", 1'000'000'000).store, "store 2");
}

TEST(LocalMeeting, WhoIsNotThereIsNamed) {
  try {
    ask_first_task(own_job("nobody"), 50'000'000);
    ADD_FAILURE() << "found somebody";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::restart_worker);
    EXPECT_NE(error.message().find("the first task of the job 'nobody of test"), std::string::npos)
        << error.message();
  }
}

TEST(LocalMeeting, JobsAreNamedAsTheirManagersNameThem) {
  const auto name = [](std::map<std::string, std::string> variables, const char* manager) {
    return name_of_job(
        [&](const std::string& variable) -> std::optional<std::string> {
          const auto found = variables.find(variable);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        {.kind = JobPlace::Kind::task, .manager = manager});
  };
  EXPECT_EQ(name({{"PMIX_NAMESPACE", "123"}, {"SLURM_JOB_ID", "7"}}, "mpirun"), "mpirun 123");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}}, "Slurm"), "Slurm 7.2");
  EXPECT_EQ(name({}, "mpiexec"), fmt::format("mpiexec of process {}", getppid()));
}

}  // namespace
}  // namespace athanor
