#include "athanor/cluster/local_meeting.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/comm/event_loop.h"
#include "athanor/comm/shared_memory.h"

namespace athanor {
namespace {

constexpr size_t most_bytes = 4096;  // of what is told: a socket takes them at once
constexpr const char* hint = "tell the tasks where to meet: comm.store=HOST:PORT and ATHANOR_SECRET";

// In the namespace of names without files, which begin with a zero byte; see unix(7).
struct LocalAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
};

LocalAddress address_of(const std::string& job) {
  LocalAddress local;
  local.address.sun_family = AF_UNIX;
  constexpr size_t most = sizeof local.address.sun_path - 1, checksum = 9;
  std::string name = fmt::format("athanor {} {}", geteuid(), job);
  // Long ones may differ at the end alone.
  if (name.size() > most) name = fmt::format("{} {:08x}", name.substr(0, most - checksum), crc32c(name));
  std::memcpy(local.address.sun_path + 1, name.data(), name.size());
  local.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return local;
}

Descriptor local_socket(int more_flags) {
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | more_flags, 0));
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

std::string read_to_end(int socket) {
  std::string text;
  std::array<char, most_bytes> bytes{};
  while (text.size() < most_bytes) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size() - text.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

std::string name_of_job(const Environment& environment, const JobPlace& place) {
  const auto value = [&](const char* name) { return environment(name).value_or(""); };
  std::string number = value("PMIX_NAMESPACE");
  if (number.empty() && !value("SLURM_STEP_ID").empty())
    number = fmt::format("{}.{}", value("SLURM_JOB_ID"), value("SLURM_STEP_ID"));
  if (number.empty()) number = fmt::format("of process {}", getppid());
  return fmt::format("{} {}", place.manager, number);
}

class LocalMeeting::Implementation {
 public:
  Implementation(const std::string& job, const MeetingPlace& place)
      : text_(place.store + "\n" + place.secret),
        listener_(local_socket(SOCK_NONBLOCK)),
        loop_("athanor-meeting", 1'000'000'000, [] {}) {
    ATHANOR_ASSERT(text_.size() < most_bytes, "{} bytes of a store's address and a secret", text_.size());
    const LocalAddress address = address_of(job);
    if (!listener_.is_open() || bind(listener_.number(), address.data(), address.length) != 0 ||
        listen(listener_.number(), SOMAXCONN) != 0)
      throw_user_error(fmt::format("the first task of the job '{}' cannot be found by the others: {}", job,
                                   std::strerror(errno)),
                       hint);
    loop_.post([this] { loop_.watch(listener_.number(), EPOLLIN, [this](uint32_t) { tell_all(); }); });
  }

 private:
  void tell_all() {
    while (true) {
      const Descriptor asking(accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!asking.is_open()) return;
      if (is_of_this_user(asking.number())) send(asking.number(), text_.data(), text_.size(), MSG_NOSIGNAL);
    }
  }

  const std::string text_;
  const Descriptor listener_;
  EventLoop loop_;  // the last member: it ends before what its callbacks use
};

LocalMeeting::LocalMeeting(const std::string& job, const MeetingPlace& place)
    : implementation_(std::make_unique<Implementation>(job, place)) {}

LocalMeeting::~LocalMeeting() = default;

MeetingPlace ask_first_task(const std::string& job, int64_t timeout_ns) {
  const LocalAddress address = address_of(job);
  const int64_t deadline = monotonic_ns() + timeout_ns;
  while (true) {
    const Descriptor socket = local_socket(0);
    if (socket.is_open() && connect(socket.number(), address.data(), address.length) == 0) {
      if (!is_of_this_user(socket.number()))
        throw_user_error(
            fmt::format("a process of another user has taken the place of the first task of '{}'", job),
            hint);
      const timeval patience{10, 0};
      setsockopt(socket.number(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      const std::string text = read_to_end(socket.number());
      const size_t end = text.find('\n');
      // Nothing comes from one that is just ending.
      if (end != std::string::npos) return {text.substr(0, end), text.substr(end + 1)};
    }
    if (monotonic_ns() >= deadline)
      throw Error(ErrorKind::restart_worker,
                  fmt::format("the first task of the job '{}' has not come within {:.0f} s", job,
                              seconds_of(timeout_ns)),
                  fmt::format("do all tasks run on this host, and under one user? Otherwise {}", hint));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace athanor
