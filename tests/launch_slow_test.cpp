// Jobs whose tasks others start: mpirun, Slurm, Kubernetes; tasks that meet by Redis; two hosts. The same
// losses as of one process, and one clear end when something goes wrong.

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/comm/socket_address.h"
#include "support/launch.h"

namespace athanor {
namespace {

using Variables = std::map<std::string, std::string>;

// Some free port: nothing else takes it within a moment.
int free_port() {
  const Descriptor probe = tcp_socket(AF_INET);
  const auto any = socket_address("127.0.0.1", 0);
  EXPECT_EQ(bind(probe.number(), any->data(), any->length), 0);
  return port_of_socket(probe.number());
}

class Managed : public Launch {
 protected:
  // Its own: other tests run beside it, and it tells their processes apart.
  const std::string secret = fmt::format("a secret of test {}", getpid());

  static std::vector<std::string> with(const Variables& variables, std::vector<std::string> command) {
    std::vector<std::string> all = {"/usr/bin/env"};
    for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  // Four ranks on two axes.
  std::vector<std::string> train_four(const std::string& name, int64_t steps,
                                      const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> more;
    for (const std::string& setting :
         {std::string("mesh.tensor=2"), std::string("mesh.shard=2"), fmt::format("train.steps={}", steps)})
      more.insert(more.end(), {"--set", setting});
    for (const std::string& setting : settings) more.insert(more.end(), {"--set", setting});
    return train(name, more);
  }
  std::unique_ptr<BackgroundProgram> start(const Variables& variables, std::vector<std::string> command) {
    return std::make_unique<BackgroundProgram>(with(variables, std::move(command)), folder_.path());
  }
  void expect_losses_of_one_process(const std::string& name) {
    if (one_.empty()) {
      EXPECT_EQ(run_and_wait(train("one", {"--set", "train.steps=5"}), folder_.path()).exit_code, 0);
      one_ = losses("one");
    }
    const std::vector<double> many = losses(name);
    ASSERT_EQ(many.size(), 5U);
    for (size_t i = 0; i < many.size(); ++i) EXPECT_NEAR(many[i], one_[i], 1e-5 * one_[i]);
  }
  Variables pod(int index, const std::string& store) const {
    return {{"JOB_COMPLETION_INDEX", std::to_string(index)},
            {"ATHANOR_STORE", store},
            {"ATHANOR_SECRET", secret}};
  }
  static std::string local_store() { return fmt::format("127.0.0.1:{}", free_port()); }

  std::vector<double> one_;
};

void expect_success(BackgroundProgram& program) {
  const ProgramResult result = program.wait(60);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

// On one host nobody need say where they meet.
TEST_F(Managed, ByMpirun) {
  if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "there is no mpirun";
  const Variables told = {{"ATHANOR_STORE", local_store()}, {"ATHANOR_SECRET", secret}};
  for (const Variables& variables : {told, Variables{}}) {
    for (const char* tasks : {"4", "2"}) {
      std::vector<std::string> command = {"/usr/bin/mpirun", "-n", tasks, "--oversubscribe",
                                          "--allow-run-as-root"};
      const std::string name = fmt::format("mpi{}{}", tasks, variables.empty() ? "" : "told");
      const auto rest = train_four(name, 5);
      command.insert(command.end(), rest.begin(), rest.end());
      const auto program = start(variables, command);
      expect_success(*program);
      expect_losses_of_one_process(name);
    }
  }
}

TEST_F(Managed, BySlurm) {
  for (const int tasks : {2, 4}) {
    const std::string name = fmt::format("slurm{}", tasks);
    std::vector<std::unique_ptr<BackgroundProgram>> programs;
    for (int task = tasks - 1; task >= 0; --task)
      programs.push_back(start({{"SLURM_PROCID", std::to_string(task)},
                                {"SLURM_LOCALID", std::to_string(task)},
                                {"SLURM_NODEID", "0"},
                                {"SLURM_STEP_ID", std::to_string(tasks)},
                                {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
                                {"SLURM_STEP_TASKS_PER_NODE", std::to_string(tasks)},
                                {"SLURM_STEP_NODELIST", "localhost"},
                                {"SLURM_JOB_ID", std::to_string(getpid())}},
                               train_four(name, 5)));
    for (const auto& program : programs) expect_success(*program);
    expect_losses_of_one_process(name);
  }
}

TEST_F(Managed, ByKubernetesInAnyOrderAndLate) {
  for (const int late : {0, 2}) {
    const std::string name = fmt::format("pods{}", late), store = local_store();
    std::vector<std::unique_ptr<BackgroundProgram>> programs;
    for (const int index : {3, 1, 2 - late})
      programs.push_back(start(pod(index, store), train_four(name, 5)));
    std::this_thread::sleep_for(std::chrono::seconds(1));
    programs.push_back(start(pod(late, store), train_four(name, 5)));
    for (const auto& program : programs) expect_success(*program);
    expect_losses_of_one_process(name);
  }
}

TEST_F(Managed, WhoDoesNotComeIsNamed) {
  const std::string store = local_store();
  std::vector<std::unique_ptr<BackgroundProgram>> programs;
  for (const int index : {0, 1, 3})
    programs.push_back(start(pod(index, store), train_four("a", 5, {"comm.start_timeout=10"})));
  for (const auto& program : programs) {
    const ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_NE(result.errors.find("one peer has not come: rank 2"), std::string::npos) << result.errors;
  }
}

TEST_F(Managed, WhoComesTwiceIsRefusedAndTheJobGoesOn) {
  const std::string store = local_store();
  std::vector<std::unique_ptr<BackgroundProgram>> programs;
  for (const int index : {0, 2, 1, 1}) programs.push_back(start(pod(index, store), train_four("a", 5)));
  // Whichever of the two comes later.
  ASSERT_TRUE(programs[0]->wait_until([&] { return programs[2]->ended() || programs[3]->ended(); }));
  const auto later = programs.begin() + (programs[2]->ended() ? 2 : 3);
  const ProgramResult again = (*later)->wait();
  programs.erase(later);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.errors.find("number 1 has come before, and was another"), std::string::npos)
      << again.errors;
  const ProgramResult first = start(pod(0, store), train_four("a", 5))->wait();
  EXPECT_EQ(first.exit_code, 2);
  EXPECT_NE(first.errors.find("Address already in use"), std::string::npos) << first.errors;
  programs.push_back(start(pod(3, store), train_four("a", 5)));
  for (const auto& program : programs) expect_success(*program);
  expect_losses_of_one_process("a");
}

// By one of the tasks, all of which see the same.
TEST_F(Managed, NotesAreWrittenOnce) {
  const std::vector<std::string> saves = {"--set", "train.steps=2", "--set", "checkpoint.every=1"};
  ASSERT_EQ(run_and_wait(train("a", saves), folder_.path()).exit_code, 0);
  std::filesystem::resize_file(folder_.path("runs/a/checkpoints/step_00000002.safetensors"), 100);
  for (const std::vector<std::string>& work :
       {std::vector<std::string>{"evaluate", "runs/a", "--data", "text.txt"},
        std::vector<std::string>{"generate", "runs/a", "--prompt", "Line", "--max-tokens", "3"}}) {
    const std::string store = local_store();
    std::vector<std::string> command = {ATHANOR_PROGRAM};
    command.insert(command.end(), work.begin(), work.end());
    command.insert(command.end(), {"--ranks", "2"});
    std::vector<std::unique_ptr<BackgroundProgram>> programs;
    for (const int index : {0, 1}) programs.push_back(start(pod(index, store), command));
    std::string errors;
    for (const auto& program : programs) {
      const ProgramResult result = program->wait();
      EXPECT_EQ(result.exit_code, 0) << result.errors;
      errors += result.errors;
    }
    EXPECT_EQ(occurrences(errors, "note: passed over"), 1) << errors;
  }
}

// Connections that are held open, that say half a request, that say anything.
TEST_F(Managed, StrangersKeepNobodyOut) {
  const int port = free_port();
  const std::string store = fmt::format("127.0.0.1:{}", port);
  std::vector<std::unique_ptr<BackgroundProgram>> programs;
  for (const int index : {0, 1}) programs.push_back(start(pod(index, store), train_four("a", 5)));
  const auto where = socket_address("127.0.0.1", static_cast<uint16_t>(port));
  const int64_t until = monotonic_ns() + 60'000'000'000;
  std::vector<Descriptor> strangers;
  const auto come = [&] {
    Descriptor stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(stranger.number(), where->data(), where->length) != 0) return;
    const std::string text = strangers.size() % 3 == 0 ? std::string(500, 'x') : "ATQ1";
    if (strangers.size() % 3 != 1) (void)!send(stranger.number(), text.data(), text.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(stranger));
  };
  while (strangers.size() < 600 && monotonic_ns() < until) come();
  EXPECT_EQ(strangers.size(), 600U);
  for (const int index : {2, 3}) programs.push_back(start(pod(index, store), train_four("a", 5)));
  for (const auto& program : programs) expect_success(*program);
  expect_losses_of_one_process("a");
}

class ByRedis : public Managed {
 protected:
  static constexpr const char* server = "/usr/bin/redis-server";
  static bool is_installed() { return std::filesystem::exists(server); }
  std::unique_ptr<BackgroundProgram> start_redis() {
    return start({}, {server, "--port", std::to_string(port_), "--bind", "127.0.0.1", "--save", "",
                      "--requirepass", "open"});
  }
  Variables pod_of(int index, const std::string& password = "open") {
    Variables variables = pod(index, fmt::format("redis://127.0.0.1:{}/tests", port_));
    variables["ATHANOR_REDIS_PASSWORD"] = password;
    return variables;
  }
  const int port_ = free_port();
};

// Twice with the same secret and name: the second time finds what the first has left.
TEST_F(ByRedis, TheSameJobTwice) {
  if (!is_installed()) GTEST_SKIP() << "there is no redis-server";
  const auto redis = start_redis();
  for (const char* name : {"first", "second"}) {
    std::vector<std::unique_ptr<BackgroundProgram>> programs;
    for (int index = 0; index < 4; ++index) programs.push_back(start(pod_of(index), train_four(name, 5)));
    for (const auto& program : programs) expect_success(*program);
    expect_losses_of_one_process(name);
  }
  const ProgramResult result = start(pod_of(0, "shut"), train_four("a", 5))->wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("has another password"), std::string::npos) << result.errors;
}

TEST_F(ByRedis, ItMayComeLateAndGo) {
  if (!is_installed()) GTEST_SKIP() << "there is no redis-server";
  std::vector<std::unique_ptr<BackgroundProgram>> programs;
  for (int index = 0; index < 4; ++index)
    programs.push_back(start(pod_of(index), train_four("a", 1'000'000'000)));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  {
    const auto redis = start_redis();
    ASSERT_TRUE(programs[0]->wait_until([&] { return has_steps("a"); }));
  }
  const size_t before = losses("a").size();
  EXPECT_TRUE(programs[0]->wait_until([&] { return losses("a").size() > before + 1; }));
  programs[2]->send(SIGTERM);
  for (const auto& program : programs) expect_success(*program);
}

// Two hosts as far as the system lets one machine be two: networks and tables of processes of their own. The
// name of the first one is loopback on itself, as installers have it.
class TwoHosts : public Managed {
 protected:
  TwoHosts() {
    if (geteuid() != 0 || !std::filesystem::exists("/usr/sbin/ip")) return;
    const std::string link = fmt::format("ath{}", getpid() % 100'000);
    made_ =
        run("ip netns add {0}a && ip netns add {0}b && ip link add {0} netns {0}a type veth peer name {0} "
            "netns {0}b"
            " && ip -n {0}a addr add 10.213.9.1/24 dev {0} && ip -n {0}b addr add 10.213.9.2/24 dev {0}"
            " && ip -n {0}a link set lo up && ip -n {0}b link set lo up"
            " && ip -n {0}a link set {0} up && ip -n {0}b link set {0} up",
            link);
    link_ = link;
    write_file_atomically(system_files(), folder_.path("hosts.a"), "127.0.0.1 localhost\n127.0.1.1 first\n");
    write_file_atomically(system_files(), folder_.path("hosts.b"), "127.0.0.1 localhost\n10.213.9.1 first\n");
  }
  ~TwoHosts() override {
    if (!link_.empty()) run("ip netns del {0}a; ip netns del {0}b", link_);
  }
  static bool run(const std::string& text, const std::string& link) {
    std::string command = text;
    for (size_t at = 0; (at = command.find("{0}")) != std::string::npos;) command.replace(at, 3, link);
    return run_and_wait({"/bin/sh", "-c", "PATH=$PATH:/usr/sbin; " + command}, "/").exit_code == 0;
  }
  void cut() const { EXPECT_TRUE(run("ip -n {0}b link set {0} down", link_)); }

  Variables of_pod(char host) const {
    return {{"JOB_COMPLETION_INDEX", host == 'a' ? "0" : "1"},
            {"ATHANOR_LOCAL_RANKS", "2"},
            {"ATHANOR_STORE", "first:29123"},
            {"ATHANOR_SECRET", secret}};
  }
  Variables of_slurm(char host) const {
    const std::string node = host == 'a' ? "0" : "1";
    return {{"SLURM_PROCID", node},
            {"SLURM_LOCALID", "0"},
            {"SLURM_NODEID", node},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_STEP_NUM_TASKS", "2"},
            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
            {"SLURM_STEP_NODELIST", "first,second"},
            {"SLURM_JOB_ID", "77"},
            {"ATHANOR_SECRET", secret}};
  }
  std::unique_ptr<BackgroundProgram> start_on(char host, std::vector<std::string> command,
                                              bool by_slurm = false) {
    std::vector<std::string> all = {"/usr/sbin/ip",
                                    "netns",
                                    "exec",
                                    link_ + host,
                                    "/usr/bin/unshare",
                                    "--pid",
                                    "--fork",
                                    "--mount-proc",
                                    "--kill-child",
                                    "/bin/sh",
                                    "-c",
                                    fmt::format("mount --bind hosts.{} /etc/hosts && exec \"$@\"", host),
                                    "sh"};
    all.insert(all.end(), command.begin(), command.end());
    return start(by_slurm ? of_slurm(host) : of_pod(host), std::move(all));
  }
  // A step's first loss is there; then `happens`, and both end with a report that says one of `reasons`.
  void expect_end(const std::vector<std::string>& settings, const std::function<void()>& happens,
                  const std::vector<std::string>& reasons) {
    const auto a = start_on('a', train_four("a", 1'000'000'000, settings)),
               b = start_on('b', train_four("a", 1'000'000'000, settings));
    ASSERT_TRUE(a->wait_until([&] { return losses("a").size() > 1; }));
    happens();
    for (BackgroundProgram* const program : {a.get(), b.get()}) {
      const ProgramResult result = program->wait(300);
      EXPECT_EQ(result.exit_code, 4) << result.errors;
      EXPECT_NE(result.errors.find("athanor: rank "), std::string::npos) << result.errors;
      EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [&](const std::string& reason) {
        return result.errors.find(reason) != std::string::npos;
      })) << result.errors;
    }
  }
  // Of the processes of the second host.
  void kill_a_rank() const {
    pid_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string path = entry.path().string();
      std::ifstream file(path + "/environ", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      if (text.find("JOB_COMPLETION_INDEX=1") != std::string::npos &&
          text.find("ATHANOR_RANK=3") != std::string::npos && text.find(secret) != std::string::npos)
        found = std::stoi(entry.path().filename().string());
    }
    ASSERT_GT(found, 0);
    kill(found, SIGKILL);
  }

  bool made_ = false;
  std::string link_;
};

TEST_F(TwoHosts, TrainAsOneProcessDoes) {
  if (!made_) GTEST_SKIP() << "network namespaces cannot be made: that takes root and ip";
  for (const bool by_slurm : {false, true}) {
    const std::string name = by_slurm ? "slurm" : "pods";
    const auto b = start_on('b', train_four(name, 5), by_slurm),
               a = start_on('a', train_four(name, 5), by_slurm);
    expect_success(*a);
    expect_success(*b);
    expect_losses_of_one_process(name);
  }
}

TEST_F(TwoHosts, ARankThatIsKilledEndsBoth) {
  if (!made_) GTEST_SKIP() << "network namespaces cannot be made: that takes root and ip";
  expect_end({}, [this] { kill_a_rank(); }, {"rank 3 "});
}

TEST_F(TwoHosts, ALinkThatIsCutEndsBoth) {
  if (!made_) GTEST_SKIP() << "network namespaces cannot be made: that takes root and ip";
  // Within comm.timeout in a step. Between steps ranks are patient: there it is the silence that tells.
  expect_end({"comm.timeout=10"}, [this] { cut(); }, {" within 10.0 s", "no sign of life for 2"});
}

// A rank that stops without a word: the others miss its heart.
TEST_F(Launch, ARankThatIsStoppedEndsAll) {
  BackgroundProgram program(train("a", {"--set", "mesh.tensor=2", "--set", "mesh.shard=2", "--set",
                                        "mesh.zero=3", "--set", "train.steps=1G"}),
                            folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return has_steps("a"); }));
  const std::vector<pid_t> ranks = children(program.process());
  ASSERT_EQ(ranks.size(), 4U);
  kill(ranks[1], SIGSTOP);
  const ProgramResult result = program.wait(300);
  EXPECT_EQ(result.exit_code, 4) << result.errors;
  EXPECT_NE(result.errors.find(fmt::format("rank 1 (process {}) shows no sign of life", ranks[1])),
            std::string::npos)
      << result.errors;
  EXPECT_NE(result.errors.find(" of group '"), std::string::npos) << result.errors;
  for (const pid_t rank : ranks) EXPECT_FALSE(is_alive(rank));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("runs/a/checkpoints/latest")));
}

}  // namespace
}  // namespace athanor
