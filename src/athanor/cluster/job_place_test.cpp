#include "athanor/cluster/job_place.h"

#include <gtest/gtest.h>

#include <map>

#include "athanor/base/error.h"

namespace athanor {
namespace {

Environment of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(JobPlace, IsAloneWithoutAManager) {
  EXPECT_EQ(recognise_place(of({}), 8).kind, JobPlace::Kind::alone);
  // A batch script is no task, and neither is a job of one.
  EXPECT_EQ(recognise_place(of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}), 8).kind,
            JobPlace::Kind::alone);
  EXPECT_EQ(recognise_place(of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), 8).kind,
            JobPlace::Kind::alone);
}

TEST(JobPlace, IsReadFromEachManager) {
  const JobPlace slurm = recognise_place(of({{"SLURM_PROCID", "9"},
                                             {"SLURM_STEP_NUM_TASKS", "12"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"SLURM_NODEID", "2"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3,1"}}),
                                         24);
  EXPECT_EQ(slurm.kind, JobPlace::Kind::task);
  EXPECT_EQ(slurm.manager, "Slurm");
  EXPECT_EQ(slurm.task, 9);
  EXPECT_EQ(slurm.tasks, 12);
  EXPECT_EQ(slurm.local_tasks, 3);
  EXPECT_EQ(ranks_of_task(slurm, 24), 2);
  EXPECT_THROW(ranks_of_task(slurm, 25), Error);

  const JobPlace mpi = recognise_place(of({{"OMPI_COMM_WORLD_RANK", "3"},
                                           {"OMPI_COMM_WORLD_SIZE", "4"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
                                       4);
  EXPECT_EQ(mpi.task, 3);
  EXPECT_EQ(mpi.local_tasks, 2);

  const JobPlace pod = recognise_place(of({{"JOB_COMPLETION_INDEX", "2"}, {"ATHANOR_LOCAL_RANKS", "8"}}), 32);
  EXPECT_EQ(pod.manager, "Kubernetes");
  EXPECT_EQ(pod.tasks, 4);
  EXPECT_EQ(ranks_of_task(pod, 32), 8);

  const JobPlace launched = recognise_place(of({{"ATHANOR_RANK", "1"},
                                                {"ATHANOR_RANKS", "2"},
                                                {"ATHANOR_LOCAL_RANK", "1"},
                                                {"ATHANOR_LOCAL_RANKS", "2"},
                                                {"OMPI_COMM_WORLD_RANK", "0"},
                                                {"OMPI_COMM_WORLD_SIZE", "1"}}),
                                            2);
  EXPECT_EQ(launched.kind, JobPlace::Kind::launched);
  EXPECT_EQ(launched.task, 1);
}

TEST(JobPlace, IsThatOfTheInnermostManager) {
  // Daemons of mpirun and mpiexec are tasks of a Slurm step, one on each host.
  std::map<std::string, std::string> step = {{"SLURM_PROCID", "1"},  {"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "0"},
                                             {"SLURM_NODEID", "1"},  {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  auto inside = step;
  inside.insert({{"OMPI_COMM_WORLD_RANK", "3"},
                 {"OMPI_COMM_WORLD_SIZE", "4"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(recognise_place(of(inside), 4).manager, "mpirun");
  EXPECT_EQ(recognise_place(of(inside), 4).task, 3);
  inside = step;
  inside.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});
  EXPECT_EQ(recognise_place(of(inside), 4).task, 3);
  // Of srun itself, which says more by its own variables.
  inside = step;
  inside.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMIX_RANK", "1"}});
  const JobPlace place = recognise_place(of(inside), 4);
  EXPECT_EQ(place.manager, "Slurm");
  EXPECT_EQ(place.local_tasks, 1);
}

TEST(JobPlace, RefusesWhatMakesNoSense) {
  for (const auto& variables : std::vector<std::map<std::string, std::string>>{
           {{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
           {{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
           {{"OMPI_COMM_WORLD_RANK", "1"}},
           {{"JOB_COMPLETION_INDEX", "-1"}},
           {{"JOB_COMPLETION_INDEX", "0"}, {"ATHANOR_LOCAL_RANKS", "3"}},
           {{"ATHANOR_RANK", "0"},
            {"ATHANOR_RANKS", "3"},
            {"ATHANOR_LOCAL_RANK", "0"},
            {"ATHANOR_LOCAL_RANKS", "3"}}})
    EXPECT_THROW(recognise_place(of(variables), 4), Error);
}

TEST(JobPlace, FindsTheStoreOfASlurmStep) {
  EXPECT_EQ(first_slurm_host("gpu[003-007,9],login"), "gpu003");
  EXPECT_EQ(first_slurm_host("n[1,3].cluster,x"), "n1.cluster");
  EXPECT_EQ(first_slurm_host("one,two"), "one");
  EXPECT_EQ(first_slurm_host("bad["), "");
  const Environment step = of({{"SLURM_STEP_NODELIST", "a[1-2]"}, {"SLURM_JOB_ID", "12345"}});
  JobPlace place;
  place.manager = "Slurm";
  EXPECT_EQ(store_of_slurm(step, place), "a1:22345");
  EXPECT_EQ(store_of_slurm(of({}), place), "");
  // That step may be the daemons of another launcher; the processes on the first host know nothing of it.
  place.manager = "mpirun";
  EXPECT_EQ(store_of_slurm(step, place), "");
}

}  // namespace
}  // namespace athanor
