// An all-reduce between two hosts over a slow link: two network namespaces, one rank in each, joined by a
// link of 1 Gbit/s with 1 ms each way that this program plays (packets wait in a queue until their time has
// come).
//
// link_share: 16 MiB / median time / link rate. A ring of two sends each byte once, so 1 is what the link
// allows, headers counted. Needs the right to make network namespaces (root).
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/communicator.h"
#include "athanor/comm/host_transport.h"
#include "athanor/comm/shared_memory.h"
#include "athanor/device/cpu_device.h"
#include "support/median.h"
#include "support/options.h"

namespace {

using namespace athanor;

constexpr int ranks = 2, most_repetitions = 200;
constexpr int64_t bytes = 16 << 20;

struct Options {
  bool json = false;
  double mbit = 1000;
  int64_t delay_us = 1000;
  int repetitions = 15;
};

struct Meeting {
  std::array<std::array<char, 512>, ranks> addresses{};
  std::array<std::atomic<int>, ranks> have_address{};
  std::array<double, most_repetitions> seconds{};
};

[[noreturn]] void give_up(const char* what) {
  throw_user_error(fmt::format("{}: {}", what, std::strerror(errno)), "run it as root");
}

void set_interface(const char* name, const char* address) {
  const Descriptor any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (address != nullptr) {
    for (const auto& [what, value] :
         {std::pair<unsigned long, const char*>{SIOCSIFADDR, address}, {SIOCSIFNETMASK, "255.255.255.0"}}) {
      auto* const where = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
      where->sin_family = AF_INET;
      inet_pton(AF_INET, value, &where->sin_addr);
      if (ioctl(any.number(), what, &request) != 0) give_up("cannot set an address");
    }
  }
  if (ioctl(any.number(), SIOCGIFFLAGS, &request) != 0) give_up("no interface");
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP | IFF_RUNNING);
  if (ioctl(any.number(), SIOCSIFFLAGS, &request) != 0) give_up("cannot bring an interface up");
}

// In a network of its own from now on; the other end of its only cable. Large packets, as of a network card
// that cuts them itself.
Descriptor enter_network(const char* address) {
  if (unshare(CLONE_NEWNET) != 0) give_up("cannot make a network namespace");
  Descriptor cable(open("/dev/net/tun", O_RDWR | O_NONBLOCK));
  if (!cable.is_open()) give_up("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  std::strncpy(request.ifr_name, "wan0", IFNAMSIZ - 1);
  if (ioctl(cable.number(), TUNSETIFF, &request) != 0) give_up("cannot make an interface");
  if (ioctl(cable.number(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) give_up("no offload");
  set_interface("lo", nullptr);
  set_interface("wan0", address);
  return cable;
}

void send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (sendmsg(socket, &message, 0) != 1) give_up("cannot hand over the cable");
}

Descriptor receive_descriptor(int socket) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const cmsghdr* header = nullptr;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || (header = CMSG_FIRSTHDR(&message)) == nullptr)
    throw_user_error("a rank has no network", "run it as root");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return Descriptor(descriptor);
}

void run_rank(int rank, int parent, Meeting& meeting, const Options& options) {
  const std::array<std::string, ranks> addresses = {"10.213.7.1", "10.213.7.2"};
  const auto at = static_cast<size_t>(rank);
  {
    const Descriptor cable = enter_network(addresses[at].c_str());
    send_descriptor(parent, cable.number());
  }
  HostEndpoint endpoint({.rank = rank,
                         .ranks = ranks,
                         .secret = Secret("benchmark"),
                         .host = fmt::format("host-{}", rank),
                         .listen = addresses[at]});
  std::strncpy(meeting.addresses[at].data(), to_text(endpoint.address()).c_str(), 511);
  meeting.have_address[at] = 1;
  const auto communicator = make_communicator(endpoint.connect([&](int peer) {
    const auto other = static_cast<size_t>(peer);
    while (meeting.have_address[other] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return parse_host_address(meeting.addresses[other].data());
  }),
                                              {.hosts = {0, 1}});
  communicator->add_group({0, "all", {0, 1}});
  CpuDevice device;
  Stream& stream = device.create_stream("communication", 1);
  const auto memory = communicator->allocate(bytes);
  Collective sum{.group = 0, .input = memory.get(), .output = memory.get()};
  sum.spec.counts = {bytes / 4};
  sum.spec.algorithm = Algorithm::ring;
  const auto prepared = communicator->prepare(sum);
  std::vector<TimeSpan> spans(static_cast<size_t>(options.repetitions) + 2);
  for (TimeSpan& span : spans) communicator->start(*prepared, stream, &span);
  stream.synchronize();
  if (rank != 0) return;
  for (int i = 0; i < options.repetitions; ++i) {
    const TimeSpan& span = spans[static_cast<size_t>(i) + 2];
    meeting.seconds[static_cast<size_t>(i)] = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }
}

struct Packet {
  int64_t due_ns = 0;
  std::vector<char> bytes;
};

// Carries packets from one end to the other, in one direction.
class Cable {
 public:
  Cable(int from, int to, const Options& options)
      : from_(from),
        to_(to),
        rate_(options.mbit * 1e6 / 8),
        delay_ns_(options.delay_us * 1000),
        room_(static_cast<size_t>(rate_ * 0.02) + 200'000) {}

  int64_t next_ns() const { return queue_.empty() ? INT64_MAX : queue_.front().due_ns; }

  void carry() {
    std::array<char, 70'000> buffer;
    for (int i = 0; i < 64; ++i) {
      const ssize_t got = read(from_, buffer.data(), buffer.size());
      if (got <= 0) break;
      if (queued_ > room_) continue;  // lost, as in any switch
      const int64_t now = monotonic_ns();
      free_ns_ = std::max(now, free_ns_) + static_cast<int64_t>(static_cast<double>(got) / rate_ * 1e9);
      queued_ += static_cast<size_t>(got);
      queue_.push_back({free_ns_ + delay_ns_, {buffer.data(), buffer.data() + got}});
    }
    while (!queue_.empty() && queue_.front().due_ns <= monotonic_ns()) {
      const Packet& packet = queue_.front();
      if (write(to_, packet.bytes.data(), packet.bytes.size()) < 0 && errno == EAGAIN) return;
      queued_ -= packet.bytes.size();
      queue_.pop_front();
    }
  }

 private:
  int from_, to_;
  double rate_;
  int64_t delay_ns_, free_ns_ = 0;
  size_t room_, queued_ = 0;
  std::deque<Packet> queue_;
};

// Plays the link until both ranks have ended; false if one failed.
bool play_link(std::array<Descriptor, ranks>& ends, std::array<pid_t, ranks> children,
               const Options& options) {
  prctl(PR_SET_TIMERSLACK, 1000);
  std::array<Cable, ranks> cables = {Cable(ends[0].number(), ends[1].number(), options),
                                     Cable(ends[1].number(), ends[0].number(), options)};
  const Descriptor waiting(epoll_create1(EPOLL_CLOEXEC));
  for (const Descriptor& end : ends) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(waiting.number(), EPOLL_CTL_ADD, end.number(), &event);
  }
  bool good = true;
  for (int left = ranks; left > 0;) {
    const int64_t next = std::min(cables[0].next_ns(), cables[1].next_ns());
    const int64_t wait = std::clamp<int64_t>(next - monotonic_ns(), 0, 50'000'000);
    const timespec timeout{0, wait};
    epoll_event event{};
    epoll_pwait2(waiting.number(), &event, 1, &timeout, nullptr);
    for (Cable& cable : cables) cable.carry();
    for (pid_t& child : children) {
      int status = 0;
      if (child <= 0 || waitpid(child, &status, WNOHANG) != child) continue;
      good = good && status == 0;
      child = 0;
      --left;
    }
  }
  return good;
}

void run(const Options& options) {
  void* const shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) give_up("no shared memory");
  auto& meeting = *new (shared) Meeting;
  std::array<pid_t, ranks> children{};
  std::array<Descriptor, ranks> ends;
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) give_up("no socket");
    Descriptor ours(pair[0]), theirs(pair[1]);
    children[static_cast<size_t>(rank)] = fork();
    if (children[static_cast<size_t>(rank)] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int code = 0;
      try {
        run_rank(rank, theirs.number(), meeting, options);
      } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        code = 1;
      }
      std::_Exit(code);
    }
    theirs.close();
    ends[static_cast<size_t>(rank)] = receive_descriptor(ours.number());
  }
  if (!play_link(ends, children, options)) throw_user_error("a rank failed");
  const double seconds = median({meeting.seconds.begin(), meeting.seconds.begin() + options.repetitions});
  const double share = static_cast<double>(bytes) / seconds / (options.mbit * 1e6 / 8);
  if (options.json)
    fmt::print(
        "{{\"link_share\": {:.4f}, \"milliseconds\": {:.3f}, \"bytes\": {}, \"link_mbit\": {}, \"delay_us\": "
        "{}}}\n",
        share, seconds * 1e3, bytes, options.mbit, options.delay_us);
  else
    fmt::print("16 MiB all_reduce over {} Mbit/s, {} us each way: {:.1f} ms, {:.3f} of the link\n",
               options.mbit, options.delay_us, seconds * 1e3, share);
}

}  // namespace

int main(int count, char** values) {
  Options arguments;
  BenchmarkOptions options("Times an all-reduce between two hosts over a slow link.");
  options.flag("--json", arguments.json, "one JSON object");
  options.number("--mbit", arguments.mbit, 1, 1e6, "rate of the link in Mbit/s");
  options.number("--delay-us", arguments.delay_us, 0, 10'000'000, "microseconds each way");
  options.number("--repetitions", arguments.repetitions, 1, most_repetitions, "the median of so many");
  return options.run(count, values, [&] { run(arguments); });
}
