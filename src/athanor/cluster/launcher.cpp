#include "athanor/cluster/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cluster/exit_code.h"
#include "athanor/cluster/job_place.h"
#include "athanor/cluster/launch_report.h"
#include "athanor/comm/shared_memory.h"

extern char** environ;

namespace athanor {
namespace {

constexpr size_t most_kept = 64 << 10;  // bytes of output that wait until they can be written
constexpr size_t last_lines = 3;        // of a failed rank's output in the report
constexpr std::array<int, 5> passed_on = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP};

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw_user_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)),
                     "raise the limit on open files (ulimit -n)");
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  fcntl(pipe.read.number(), F_SETFL, O_NONBLOCK);
  return pipe;
}

// The signals come through a descriptor as long as it lives.
class CaughtSignals {
 public:
  CaughtSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : passed_on) sigaddset(&set, number);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &before_);
    descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_.is_open()) {
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      throw_user_error(fmt::format("cannot listen to signals: {}", std::strerror(errno)));
    }
  }
  ~CaughtSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  const sigset_t& before() const { return before_; }
  int descriptor() const { return descriptor_.number(); }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

struct RankProcess {
  int rank = 0;
  pid_t process = -1;
  bool ended = false;
  int status = 0;  // of waitpid
  Descriptor output, report;
  std::string kept, said;  // output that is not in the log yet; what it reported
  std::string last;        // of its output
  Descriptor log;
};

// What the child needs, made before it is born: afterwards it may only do what is safe in signal handlers.
class Image {
 public:
  Image(const LaunchOptions& options, int local_rank, int report) {
    texts_ = options.arguments;
    for (std::string& text : texts_) arguments_.push_back(text.data());
    arguments_.push_back(nullptr);
    std::vector<std::pair<std::string, std::string>> added = options.variables;
    added.emplace_back(rank_variable, std::to_string(options.first_rank + local_rank));
    added.emplace_back(ranks_variable, std::to_string(options.ranks));
    added.emplace_back(local_rank_variable, std::to_string(local_rank));
    added.emplace_back(local_ranks_variable, std::to_string(options.local_ranks));
    added.emplace_back(report_variable, std::to_string(report));
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const bool replaced = std::any_of(added.begin(), added.end(), [&](const auto& variable) {
        return text.size() > variable.first.size() && text.starts_with(variable.first) &&
               text[variable.first.size()] == '=';
      });
      if (!replaced) variables_.emplace_back(text);
    }
    for (const auto& [name, value] : added) variables_.push_back(name + "=" + value);
    for (std::string& text : variables_) environment_.push_back(text.data());
    environment_.push_back(nullptr);
  }

  [[noreturn]] void become(const LaunchOptions& options, const sigset_t& signals, pid_t launcher, int output,
                           int report) const {
    // The end of the launcher, however it comes, is the end of its ranks.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    // A group of its own: what the terminal sends comes through the launcher, once.
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &signals, nullptr);
    if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)) _exit(127);
    fcntl(report, F_SETFD, 0);
    execve(options.program.c_str(), arguments_.data(), environment_.data());
    _exit(127);
  }

 private:
  std::vector<std::string> texts_, variables_;
  std::vector<char*> arguments_, environment_;
};

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {}
  ~Launch() {
    kill_all(SIGKILL);
    for (RankProcess& rank : ranks_)
      if (!rank.ended && rank.process > 0) waitpid(rank.process, nullptr, 0);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void run() {
    for (int i = 0; i < options_.local_ranks; ++i) start(i);
    while (!all_ended()) {
      wait();
      if (blamed_ >= 0 && monotonic_ns() > deadline_ns_) kill_all(SIGKILL);
    }
    for (RankProcess& rank : ranks_) hear(rank);
    write_logs();
    if (blamed_ >= 0) give_report(ranks_[static_cast<size_t>(blamed_)]);
  }

 private:
  void start(int local_rank) {
    RankProcess& rank = ranks_.emplace_back();
    rank.rank = options_.first_rank + local_rank;
    Pipe output, report = make_pipe();
    if (rank.rank != 0) output = make_pipe();
    const Image image(options_, local_rank, report.write.number());
    const pid_t launcher = getpid();
    rank.process = fork();
    if (rank.process == 0)
      image.become(options_, signals_.before(), launcher, output.write.number(), report.write.number());
    if (rank.process < 0)
      throw_user_error(fmt::format("cannot start rank {}: {}", rank.rank, std::strerror(errno)),
                       "raise the limit on processes (ulimit -u)");
    rank.output = std::move(output.read);
    rank.report = std::move(report.read);
  }

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.ended; });
  }

  void kill_all(int signal) {
    for (const RankProcess& rank : ranks_)
      if (!rank.ended && rank.process > 0) kill(rank.process, signal);
  }

  void wait() {
    std::vector<pollfd> wanted = {{signals_.descriptor(), POLLIN, 0}};
    for (const RankProcess& rank : ranks_) {
      wanted.push_back({rank.output.is_open() ? rank.output.number() : -1, POLLIN, 0});
      wanted.push_back({rank.report.is_open() ? rank.report.number() : -1, POLLIN, 0});
    }
    poll(wanted.data(), wanted.size(), blamed_ >= 0 ? 50 : 1000);
    signalfd_siginfo signal{};
    while (read(signals_.descriptor(), &signal, sizeof signal) == sizeof signal) {
      const auto number = static_cast<int>(signal.ssi_signo);
      if (number == SIGTSTP) {
        rest();
        continue;
      }
      if (number == SIGCHLD) continue;
      kill_all(number);
      if (number != SIGUSR1) asked_to_end_.push_back(number);
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      RankProcess& rank = ranks_[i];
      if (wanted[1 + 2 * i].revents != 0 || wanted[2 + 2 * i].revents != 0) hear(rank);
      if (rank.ended || waitpid(rank.process, &rank.status, WNOHANG) != rank.process) continue;
      rank.ended = true;
      hear(rank);
      const bool good = WIFEXITED(rank.status) && WEXITSTATUS(rank.status) == 0;
      if (!good) blame(static_cast<int>(i));
    }
    write_logs();
  }

  // As Ctrl-Z means it: all ranks stop, and go on when this process does.
  void rest() {
    kill_all(SIGSTOP);
    raise(SIGSTOP);
    kill_all(SIGCONT);
  }

  // How surely a rank failed by itself: killed from outside; with an error of its own; gave up, which is what
  // ranks do whose peers have failed.
  static int weight_of(const RankProcess& rank) {
    if (WIFSIGNALED(rank.status)) return 2;
    return error_kind_of(WEXITSTATUS(rank.status)) == ErrorKind::restart_worker ? 0 : 1;
  }

  // The first that failed, of those that most surely did so by themselves.
  void blame(int which) {
    const auto weight = [this](int i) { return weight_of(ranks_[static_cast<size_t>(i)]); };
    if (blamed_ < 0) {
      blamed_ = which;
      deadline_ns_ = monotonic_ns() + options_.grace_ns;
    } else if (monotonic_ns() < deadline_ns_ && weight(which) > weight(blamed_)) {
      blamed_ = which;
    }
  }

  // Takes all bytes that are there; true at the end.
  static bool take_all(Descriptor& from, const std::function<void(std::string_view)>& take) {
    std::array<char, 16 << 10> buffer;
    while (from.is_open()) {
      const ssize_t got = read(from.number(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) from.close();
      if (got > 0) take(std::string_view(buffer.data(), static_cast<size_t>(got)));
    }
    return true;
  }

  void hear(RankProcess& rank) {
    take_all(rank.report, [&](std::string_view text) {
      if (rank.said.size() < most_kept) rank.said += text;
    });
    if (rank.rank == 0 && folder_.empty()) folder_ = read_report(rank.said).folder;
    take_all(rank.output, [&](std::string_view text) {
      rank.kept += text;
      rank.last += text;
      if (rank.last.size() > 4096) rank.last.erase(0, rank.last.size() - 4096);
    });
  }

  std::string log_folder() const { return folder_ + "/logs"; }
  std::string log_path(const RankProcess& rank) const {
    return fmt::format("{}/rank_{}.log", log_folder(), rank.rank);
  }

  // What cannot be written, as before the run has a folder or when the disk is full, is kept, the latest of
  // it, and tried again: it ends no run.
  void write_logs() {
    for (RankProcess& rank : ranks_)
      if (!rank.kept.empty()) write_log(rank);
  }

  void write_log(RankProcess& rank) {
    if (!rank.log.is_open() && !folder_.empty() && access(folder_.c_str(), W_OK) == 0) {
      mkdir(log_folder().c_str(), 0777);
      rank.log = Descriptor(open(log_path(rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    }
    while (rank.log.is_open() && !rank.kept.empty()) {
      const ssize_t written = write(rank.log.number(), rank.kept.data(), rank.kept.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      rank.kept.erase(0, static_cast<size_t>(written));
    }
    if (rank.kept.size() > most_kept) rank.kept.erase(0, rank.kept.size() - most_kept);
  }

  static std::string last_of(const std::string& output) {
    std::string_view text = output;
    while (text.ends_with('\n')) text.remove_suffix(1);
    size_t begin = text.size();
    for (size_t lines = 0; lines < last_lines && begin != std::string_view::npos && begin > 0; ++lines)
      begin = text.rfind('\n', begin - 1);
    return std::string(begin == std::string_view::npos ? text : text.substr(begin == 0 ? 0 : begin + 1));
  }

  // As whoever sent it wanted: nothing has failed. Ranks die of a signal before they train, and of a second
  // SIGINT.
  static void end_by(int signal) {
    std::signal(signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
  }

  [[noreturn]] void give_report(const RankProcess& rank) const {
    const LaunchReport report = read_report(rank.said);
    const std::string name =
        fmt::format("rank {} of {} (process {})", rank.rank, options_.ranks, rank.process);
    std::string hint;
    const std::string last = last_of(rank.last);
    if (!last.empty() && !report.error) hint = "it said last: " + last;
    if (rank.log.is_open())
      hint += fmt::format("{}its output is in {}", hint.empty() ? "" : "\n", log_path(rank));
    if (WIFSIGNALED(rank.status)) {
      const int signal = WTERMSIG(rank.status);
      if (std::find(asked_to_end_.begin(), asked_to_end_.end(), signal) != asked_to_end_.end())
        end_by(signal);
      if (signal == SIGKILL)
        hint = "killed from outside: by a person, a scheduler, or for lack of memory (see dmesg)" +
               (hint.empty() ? "" : "\n" + hint);
      throw Error(ErrorKind::restart_worker,
                  fmt::format("{} was killed by signal {} ({}); the other ranks have been ended", name,
                              signal, strsignal(signal)),
                  hint);
    }
    const int code = WEXITSTATUS(rank.status);
    const std::string what = report.error
                                 ? fmt::format("rank {} of {}: {}", rank.rank, options_.ranks, *report.error)
                                 : fmt::format("{} ended with exit code {}", name, code);
    if (const auto kind = error_kind_of(code)) throw Error(*kind, what, hint);
    throw std::runtime_error(hint.empty() ? what : what + "\n  hint: " + hint);
  }

  const LaunchOptions& options_;
  const CaughtSignals signals_;
  std::vector<RankProcess> ranks_;
  std::string folder_;
  int blamed_ = -1;  // local rank
  int64_t deadline_ns_ = 0;
  std::vector<int> asked_to_end_;  // the signals
};

}  // namespace

void launch(const LaunchOptions& options) {
  Launch(options).run();
}

}  // namespace athanor
