// A rank that has joined its job: it has found the others and can start collectives.
//
// Called by `athanor train`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "athanor/cluster/rendezvous.h"
#include "athanor/comm/communicator.h"
#include "athanor/store/store.h"
#include "athanor/store/store_server.h"

namespace athanor {

struct JobOptions {
  Mesh mesh;
  int rank = 0;
  int local_rank = 0, local_ranks = 1;  // on this host
  std::string store;                    // see parse_store_address
  std::string store_password;           // of Redis
  Secret secret;
  uint64_t generation = 1;  // of the membership
  std::string listen;       // numeric address for ranks of other hosts; empty: chosen if needed
  int64_t start_timeout_ns = 300'000'000'000;
  int64_t collective_timeout_ns = 600'000'000'000;
  int64_t patience_ns = 14'400'000'000'000;  // see CommunicatorOptions
  Algorithm algorithm = Algorithm::automatic;
};

struct JobRank {
  int rank = 0, ranks = 1, local_rank = 0, local_ranks = 1;
  // In the order in which they need each other, the last one first.
  std::unique_ptr<StoreServer> server;  // where this process keeps the store: to be put in
  std::unique_ptr<Store> store;
  std::unique_ptr<AddressBook> addresses;
  std::unique_ptr<Communicator> communicator;
};

// Meets the other ranks. Throws user errors (addresses, secret) and Error(restart_worker) that names those
// who have not come. Nothing listens where all ranks are on this host; otherwise on `listen`, or on the
// address that leads to the store.
JobRank join_job(const JobOptions& options);

// A server for the store at `address`, on this host: on that address if it is one of this machine, else (the
// address of a service that leads here; of a name that is loopback here and not elsewhere, unless all ranks
// are on `one_host`) on every one. Waits until `timeout_ns` for the name to be known.
std::unique_ptr<StoreServer> serve_store(const StoreAddress& address, const Secret& secret, bool one_host,
                                         int64_t timeout_ns);

// The secret from ATHANOR_SECRET; user error without one.
Secret secret_in_environment(
    const std::function<std::optional<std::string>(const std::string&)>& environment);

}  // namespace athanor
