#include "athanor/cluster/job_rank.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cluster/job_place.h"
#include "athanor/comm/socket_address.h"

namespace athanor {
namespace {

std::vector<SocketAddress> resolve(const StoreAddress& address, int64_t timeout_ns) {
  // The name of a pod that is just coming up may not be known yet, not even to itself.
  const int64_t deadline = monotonic_ns() + timeout_ns;
  while (true) {
    auto all = resolve_addresses(address.host, address.port);
    if (!all.empty()) return all;
    if (monotonic_ns() >= deadline)
      throw_user_error(fmt::format("nobody knows the host of the store {}", to_text(address)),
                       "comm.store or ATHANOR_STORE: HOST:PORT, where HOST is the one of the first task");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// A name may stand for loopback on its own host alone, as installers write into /etc/hosts.
bool is_meant_for_others(const StoreAddress& store) {
  const auto numeric = socket_address(store.host, 0);
  return store.host != "localhost" && !(numeric && is_loopback(*numeric));
}

// The address that packets to `where` would leave from; no packet is sent.
std::optional<SocketAddress> address_towards(const SocketAddress& where) {
  const Descriptor probe(socket(where.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  own.length = sizeof own.storage;
  if (!probe.is_open() || connect(probe.number(), where.data(), where.length) != 0 ||
      getsockname(probe.number(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0)
    return std::nullopt;
  return own;
}

// Of the interfaces that are up, the first one that leads somewhere.
std::optional<SocketAddress> address_of_some_interface() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<SocketAddress> found;
  for (const ifaddrs* each = all; each != nullptr && !found; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    found.emplace();
    std::memcpy(&found->storage, each->ifa_addr, sizeof(sockaddr_in));
    found->length = sizeof(sockaddr_in);
  }
  freeifaddrs(all);
  return found;
}

// Where ranks of other hosts find this one: the address that leads to the store. On the store's own host that
// may be loopback; then the one that leads out of it.
std::string own_address(const StoreAddress& store, int64_t timeout_ns) {
  std::optional<SocketAddress> own;
  for (const SocketAddress& where : resolve(store, timeout_ns))
    if (!own) own = address_towards(where);
  if (own && is_loopback(*own) && is_meant_for_others(store)) {
    // An address kept for documentation (RFC 5737): nobody has it, and it goes where all else goes.
    own = address_towards(*socket_address("192.0.2.1", 9));
    if (!own || is_loopback(*own)) own = address_of_some_interface();
  }
  if (!own)
    throw_user_error(fmt::format("no way leads from here to the store at {}", to_text(store)),
                     "give an address of this machine: comm.listen");
  return numeric_text(*own);
}

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreAddress& address, const Secret& secret, bool one_host,
                                         int64_t timeout_ns) {
  const std::vector<SocketAddress> all = resolve(address, timeout_ns);
  std::string listen;
  for (const SocketAddress& each : all)
    if (listen.empty() && is_of_this_machine(each)) listen = numeric_text(each);
  const bool beyond = !one_host && is_meant_for_others(address);
  const auto chosen = socket_address(listen, 0);
  // The address of a service that leads here, or a name that is loopback on this host alone.
  if (!chosen || (beyond && is_loopback(*chosen)))
    listen = std::all_of(all.begin(), all.end(),
                         [](const SocketAddress& each) { return each.storage.ss_family == AF_INET6; })
                 ? "::"
                 : "0.0.0.0";
  return std::make_unique<StoreServer>(
      StoreServerOptions{.secret = secret, .listen = listen, .port = address.port});
}

Secret secret_in_environment(
    const std::function<std::optional<std::string>(const std::string&)>& environment) {
  const auto text = environment(secret_variable);
  if (!text || text->empty())
    throw_user_error(fmt::format("the job has no secret: {} is not set", secret_variable),
                     "the same random text for all ranks, such as that of `openssl rand -hex 32`, exported "
                     "before srun or mpirun starts them, or from a Kubernetes secret");
  return Secret(*text);
}

JobRank join_job(const JobOptions& options) {
  const auto ranks = static_cast<int>(options.mesh.ranks());
  JobRank job{.rank = options.rank,
              .ranks = ranks,
              .local_rank = options.local_rank,
              .local_ranks = options.local_ranks,
              .server = nullptr,
              .store = nullptr,
              .addresses = nullptr,
              .communicator = nullptr};
  if (ranks == 1) return job;
  const StoreAddress address = parse_store_address(options.store);
  job.store = connect_store({.address = address,
                             .secret = options.secret,
                             .rank = options.rank,
                             .connect_timeout_ns = options.start_timeout_ns,
                             .password = options.store_password});
  HostTransportOptions transport{
      .rank = options.rank, .ranks = ranks, .secret = options.secret, .generation = options.generation};
  if (!options.listen.empty())
    transport.listen = options.listen;
  else if (options.local_ranks < ranks)
    transport.listen = own_address(address, options.start_timeout_ns);
  HostEndpoint endpoint(std::move(transport));
  job.addresses =
      meet(*job.store, endpoint.address(),
           {.mesh = options.mesh, .generation = options.generation, .timeout_ns = options.start_timeout_ns});
  job.communicator = make_communicator(
      endpoint.connect([book = job.addresses.get()](int rank) { return book->address_of(rank); }),
      {.timeout_ns = options.collective_timeout_ns,
       .patience_ns = options.patience_ns,
       .algorithm = options.algorithm,
       .hosts = job.addresses->hosts(options.local_ranks)});
  return job;
}

}  // namespace athanor
