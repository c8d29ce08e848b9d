#include "athanor/cluster/job_rank.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/cluster/job_place.h"
#include "athanor/comm/socket_address.h"

namespace athanor {
namespace {

std::string numeric_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes =
      address.storage.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
  return inet_ntop(address.storage.ss_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

SocketAddress resolve(const StoreAddress& address) {
  const auto where = resolve_address(address.host, address.port);
  if (!where)
    throw_user_error(fmt::format("nobody knows the host of the store {}", to_text(address)),
                     "comm.store or ATHANOR_STORE: HOST:PORT, where HOST is the one of the first task");
  return *where;
}

// The address of this machine from which it reaches the store: no packet is sent.
std::string address_towards(const StoreAddress& store) {
  const SocketAddress where = resolve(store);
  const Descriptor probe(socket(where.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  own.length = sizeof own.storage;
  if (!probe.is_open() || connect(probe.number(), where.data(), where.length) != 0 ||
      getsockname(probe.number(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0)
    throw_user_error(fmt::format("no way leads from here to the store at {}", to_text(store)),
                     "give an address of this machine: comm.listen");
  return numeric_text(own);
}

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreAddress& address, const Secret& secret) {
  return std::make_unique<StoreServer>(
      StoreServerOptions{.secret = secret, .listen = numeric_text(resolve(address)), .port = address.port});
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
  if (options.keeps_store && !address.redis) job.server = serve_store(address, options.secret);
  job.store = connect_store({.address = address,
                             .secret = options.secret,
                             .rank = options.rank,
                             .connect_timeout_ns = options.start_timeout_ns});
  HostTransportOptions transport{
      .rank = options.rank, .ranks = ranks, .secret = options.secret, .generation = options.generation};
  if (!options.listen.empty())
    transport.listen = options.listen;
  else if (options.local_ranks < ranks)
    transport.listen = address_towards(address);
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
