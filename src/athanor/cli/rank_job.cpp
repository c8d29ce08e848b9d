#include "athanor/cli/rank_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/cluster/job_place.h"
#include "athanor/cluster/launch_report.h"
#include "athanor/cluster/launcher.h"
#include "athanor/cluster/local_meeting.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/device/thread_team.h"

namespace athanor {
namespace {

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

// This process's command line.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  std::string argument;
  while (std::getline(file, argument, '\0')) arguments.push_back(argument);
  if (arguments.empty()) throw_user_error("/proc/self/cmdline cannot be read", "is /proc there?");
  return arguments;
}

// Where the ranks of a job find each other, and what this process does for the others as long as it lives.
struct Meeting {
  MeetingPlace place;
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<LocalMeeting> local;
};

std::string given_store(const CommunicationOptions& options, const Environment& environment) {
  return options.store.empty() ? environment(store_variable).value_or("") : options.store;
}

// A store of this host alone.
Meeting meeting_of_one_host(const std::string& secret) {
  Meeting meeting;
  meeting.place.secret = secret.empty() ? hex_of(bytes_of(Secret::random().bytes())) : secret;
  meeting.server = std::make_unique<StoreServer>(StoreServerOptions{.secret = Secret(meeting.place.secret)});
  meeting.place.store = fmt::format("127.0.0.1:{}", meeting.server->port());
  return meeting;
}

Meeting meeting_of_tasks(const CommunicationOptions& options, const Environment& environment,
                         const JobPlace& place) {
  const int64_t timeout_ns = nanoseconds(options.start_timeout_seconds);
  std::string store = given_store(options, environment);
  if (store.empty() && place.local_tasks == place.tasks) {
    const std::string job = name_of_job(environment, place);
    if (place.task != 0) return {ask_first_task(job, timeout_ns), nullptr, nullptr};
    Meeting meeting = meeting_of_one_host(environment(secret_variable).value_or(""));
    meeting.local = std::make_unique<LocalMeeting>(job, meeting.place);
    return meeting;
  }
  if (store.empty()) store = store_of_slurm(environment, place);
  if (store.empty())
    throw_user_error(
        fmt::format("{} has started {} tasks, and nothing says where they find each other", place.manager,
                    place.tasks),
        "set comm.store, or ATHANOR_STORE: HOST:PORT, where HOST is the host of the first task and "
        "PORT is free there, or redis://HOST:PORT");
  const Secret secret = secret_in_environment(environment);
  const StoreAddress address = parse_store_address(store);
  Meeting meeting{{store, secret.bytes()}, nullptr, nullptr};
  if (place.task == 0 && !address.redis)
    meeting.server = serve_store(address, secret, place.local_tasks == place.tasks, timeout_ns);
  return meeting;
}

int ranks_of(const RunOptions& options) {
  return static_cast<int>(options.mesh().ranks());
}

}  // namespace

void set_ranks(RunConfiguration& run, int64_t ranks) {
  const int64_t of_mesh = run.options.mesh().ranks();
  if (of_mesh == ranks) return;
  if (of_mesh == 1) return run.table.apply_setting(fmt::format("mesh.shard={}", ranks));
  throw_user_error(
      fmt::format("--ranks {}, but the mesh has {} ranks: the product of mesh.*", ranks, of_mesh),
      "leave out --ranks, or change mesh.*");
}

bool starts_ranks(const RunOptions& options) {
  const JobPlace place = recognise_place(process_environment(), ranks_of(options));
  return place.kind != JobPlace::Kind::launched && ranks_of_task(place, ranks_of(options)) > 1;
}

void start_ranks(const RunOptions& options) {
  const Environment environment = process_environment();
  const JobPlace place = recognise_place(environment, ranks_of(options));
  LaunchOptions launch_options;
  launch_options.arguments = own_arguments();
  launch_options.ranks = ranks_of(options);
  launch_options.local_ranks = ranks_of_task(place, launch_options.ranks);
  refuse_too_many(launch_options.local_ranks, "ranks",
                  "change --ranks or mesh.*, or use more machines (docs/jobs.md)");
  launch_options.first_rank = place.task * launch_options.local_ranks;
  const Meeting meeting = place.kind == JobPlace::Kind::alone
                              ? meeting_of_one_host("")
                              : meeting_of_tasks(options.communication, environment, place);
  launch_options.variables = {{store_variable, meeting.place.store}, {secret_variable, meeting.place.secret}};
  launch(launch_options);
}

JobRank join_ranks(RunOptions& options, const std::function<void()>& settle) {
  const Environment environment = process_environment();
  const JobPlace place = recognise_place(environment, ranks_of(options));
  if (place.tasks == 1) {
    settle();
    return {};
  }
  Meeting meeting;
  if (place.kind == JobPlace::Kind::launched)
    meeting.place = {environment(store_variable).value_or(""), secret_in_environment(environment).bytes()};
  else
    meeting = meeting_of_tasks(options.communication, environment, place);
  JobRank job = join_job({.mesh = options.mesh(),
                          .rank = place.task,
                          .local_rank = place.local_task,
                          .local_ranks = std::max(1, place.local_tasks),
                          .store = meeting.place.store,
                          .store_password = environment(password_variable).value_or(""),
                          .secret = Secret(meeting.place.secret),
                          .listen = options.communication.listen,
                          .start_timeout_ns = nanoseconds(options.communication.start_timeout_seconds),
                          .collective_timeout_ns = nanoseconds(options.communication.timeout_seconds),
                          .patience_ns = nanoseconds(options.communication.patience_seconds),
                          .algorithm = options.communication.algorithm});
  job.server = std::move(meeting.server);
  RankMessages messages(job.communicator.get());
  messages.abort_with_error([&] {
    if (messages.is_first()) settle();
  });
  messages.broadcast(options.name);
  std::array<int64_t, 1> resume = {options.resume ? 1 : 0};
  messages.broadcast(std::span<int64_t>(resume));
  options.resume = resume[0] != 0;
  if (messages.is_first()) report_folder(environment, options.run_folder());
  return job;
}

void share_cores(RunOptions& options, const JobRank& job) {
  if (options.threads > 0 || job.ranks == 1) return;
  const int cores = available_cores();
  // A manager that gives each of its tasks cores of its own has shared them already.
  const bool bound = process_environment()(rank_variable) == std::nullopt &&
                     cores < static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  options.threads = bound ? cores : std::max(1, cores / job.local_ranks);
}

}  // namespace athanor
