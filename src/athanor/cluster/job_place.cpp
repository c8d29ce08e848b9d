#include "athanor/cluster/job_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr int most_ranks = 1 << 20;
constexpr const char* slurm = "Slurm";

std::optional<int> number_in(const Environment& environment, const std::string& name) {
  const auto text = environment(name);
  if (!text || text->empty()) return std::nullopt;
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc{} || end != text->data() + text->size() || number < 0 || number > most_ranks)
    throw_user_error(fmt::format("the environment says {}={}", name, text->substr(0, 100)),
                     fmt::format("a number from 0 to {}", most_ranks));
  return number;
}

int required(const Environment& environment, const std::string& name, const std::string& beside) {
  const auto number = number_in(environment, name);
  if (!number)
    throw_user_error(fmt::format("the environment has {}, but not {}", beside, name),
                     "start the job anew, or unset what is left of another");
  return *number;
}

struct Manager {
  const char* name;
  const char *task, *tasks, *local_task, *local_tasks;
  const char* also;  // must be there too; null: nothing
};

// One may start another: mpirun in a Slurm job begins its daemons as a Slurm step, and what these start has
// the variables of that step too. The innermost comes first.
constexpr Manager managers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    // In the script of a batch job all but the step's number is there too, and it is no task.
    {slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_STEP_ID"},
    // These two do not say how many tasks there are.
    {"PMIx", "PMIX_RANK", nullptr, "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE", nullptr},
    {"Kubernetes", "JOB_COMPLETION_INDEX", nullptr, nullptr, nullptr, nullptr},
};

// `srun --mpi=pmi2` sets these too.
bool pmi_is_of_slurm(const Environment& environment) {
  return environment("SLURM_STEP_ID") && environment("PMI_RANK") == environment("SLURM_PROCID") &&
         environment("PMI_SIZE") == environment("SLURM_STEP_NUM_TASKS");
}

// Where the manager does not count them.
int tasks_of(const Environment& environment, int ranks) {
  const int of_task = std::max(1, number_in(environment, local_ranks_variable).value_or(1));
  if (ranks % of_task != 0)
    throw_user_error(fmt::format("{} is {}, and the job's {} rank{} cannot be divided into tasks of {}",
                                 local_ranks_variable, of_task, ranks, ranks == 1 ? "" : "s", of_task),
                     "give the job a multiple of it as ranks (mesh.*, --ranks), or change it");
  return ranks / of_task;
}

// "8(x3),4" is 8, 8, 8, 4: the entry of the node.
std::optional<int> slurm_tasks_on(const std::string& list, int node) {
  size_t at = 0;
  const auto number = [&]() -> int {
    int value = -1;
    const auto [end, error] = std::from_chars(list.data() + at, list.data() + list.size(), value);
    at = static_cast<size_t>(end - list.data());
    return error == std::errc{} ? value : -1;
  };
  while (at < list.size()) {
    const int tasks = number();
    int nodes = 1;
    if (tasks <= 0) return std::nullopt;
    if (list.compare(at, 2, "(x") == 0) {
      at += 2;
      nodes = number();
      if (nodes <= 0 || at >= list.size() || list[at] != ')') return std::nullopt;
      ++at;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (at < list.size() && list[at++] != ',') return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

JobPlace recognise_place(const Environment& environment, int ranks) {
  JobPlace place;
  if (const auto rank = number_in(environment, rank_variable)) {
    place.kind = JobPlace::Kind::launched;
    place.manager = "athanor";
    place.task = *rank;
    place.tasks = required(environment, ranks_variable, rank_variable);
    place.local_task = required(environment, local_rank_variable, rank_variable);
    place.local_tasks = required(environment, local_ranks_variable, rank_variable);
    if (place.tasks != ranks)
      throw_user_error(
          fmt::format("the job was started with {} ranks, and the mesh has {}", place.tasks, ranks),
          "start it with the number of ranks that mesh.* gives");
  } else {
    for (const Manager& manager : managers) {
      const auto task = number_in(environment, manager.task);
      if (!task || (manager.also != nullptr && !environment(manager.also))) continue;
      if (std::string_view(manager.task) == "PMI_RANK" && pmi_is_of_slurm(environment)) continue;
      place.kind = JobPlace::Kind::task;
      place.manager = manager.name;
      place.task = *task;
      // Ranks in each task are the user's choice where tasks are not counted.
      place.tasks = manager.tasks != nullptr ? required(environment, manager.tasks, manager.task)
                                             : tasks_of(environment, ranks);
      if (manager.local_task != nullptr)
        place.local_task = number_in(environment, manager.local_task).value_or(0);
      place.local_tasks =
          manager.local_tasks != nullptr ? number_in(environment, manager.local_tasks).value_or(0) : 1;
      if (place.manager == slurm)
        place.local_tasks = slurm_tasks_on(environment("SLURM_STEP_TASKS_PER_NODE").value_or(""),
                                           number_in(environment, "SLURM_NODEID").value_or(0))
                                .value_or(0);
      break;
    }
    if (place.tasks == 1 && place.task == 0) place.kind = JobPlace::Kind::alone;
  }
  if (place.tasks < 1 || place.task >= place.tasks || place.local_tasks > place.tasks ||
      (place.local_tasks > 0 && place.local_task >= place.local_tasks))
    throw_user_error(
        fmt::format("the environment of {} makes this process number {} of {}, and number {} of {} "
                    "on its host",
                    place.manager, place.task, place.tasks, place.local_task, place.local_tasks),
        place.tasks == ranks && ranks == 1
            ? fmt::format("give the job more ranks (mesh.*, --ranks), or unset what {} has set for a "
                          "process on its own",
                          place.manager)
            : "unset what is left of another job");
  return place;
}

int ranks_of_task(const JobPlace& place, int ranks) {
  if (ranks % place.tasks != 0)
    throw_user_error(
        fmt::format("{} has started {} tasks, and they cannot divide the job's {} rank{} evenly",
                    place.manager, place.tasks, ranks, ranks == 1 ? "" : "s"),
        fmt::format("give the job as many ranks as tasks, or a multiple (mesh.*, --ranks {}), or start "
                    "another number of tasks",
                    place.tasks));
  return ranks / place.tasks;
}

std::string first_slurm_host(const std::string& list) {
  const size_t end = list.find_first_of("[,");
  std::string host = list.substr(0, end);
  if (end == std::string::npos || list[end] == ',') return host;
  const size_t close = list.find_first_of("-,]", end + 1);
  if (close == std::string::npos) return {};
  host += list.substr(end + 1, close - end - 1);
  // What follows the brackets belongs to the name: "n[1-3].cluster".
  const size_t bracket = list.find(']', close);
  if (bracket == std::string::npos) return {};
  const size_t rest = list.find(',', bracket);
  return host + list.substr(bracket + 1, rest == std::string::npos ? rest : rest - bracket - 1);
}

std::string store_of_slurm(const Environment& environment, const JobPlace& place) {
  if (place.manager != slurm) return {};
  const auto nodes = environment("SLURM_STEP_NODELIST");
  const auto job = environment("SLURM_JOB_ID");
  if (!nodes || !job) return {};
  const std::string host = first_slurm_host(*nodes);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(job->data(), job->data() + job->size(), number);
  if (host.empty() || error != std::errc{}) return {};
  // Steps of one job beside each other want ATHANOR_STORE.
  return fmt::format("{}:{}", host, 20'000 + number % 10'000);
}

}  // namespace athanor
