// Ranks as processes: those of one host share memory, those of different hosts speak over TCP.
//
// Called by start-up code (launch, rendezvous) and tests. Thread safety: see transport.h.
//
// A rank opens its endpoint, tells the others its address by whatever means (a store, a pipe), and connects
// with a function that knows the address of every rank. Nothing is opened to a peer before it is used. A peer
// that dies, or leaves with work undone, ends every wait of this rank at once; one that shows no sign of life
// for `silence_ns` counts as dead.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "athanor/comm/secret.h"
#include "athanor/comm/transport.h"

namespace athanor {

// Where the others find a rank.
struct HostAddress {
  int rank = -1;
  uint64_t generation = 0;
  std::string host;       // equal where memory can be shared
  pid_t process = 0;      // within its host
  int segment = -1;       // descriptor of its shared memory in that process
  std::string address{};  // numeric IP address; empty: only its own host can reach it
  uint16_t port = 0;
  bool operator==(const HostAddress&) const = default;
};

// One line: rank, generation, host, process, segment, port and address with a space between each two. Parsing
// throws a user error.
std::string to_text(const HostAddress& address);
HostAddress parse_host_address(std::string_view text);

// What distinguishes this host, and on it the processes that see each other, from all others.
std::string this_host();

struct HostTransportOptions {
  int rank = 0, ranks = 1;
  Secret secret;
  uint64_t generation = 1;  // of the membership: ranks of different ones do not speak to each other
  std::string host = this_host();
  // Numeric IP address to listen on; empty: nothing listens, all ranks are on this host.
  std::string listen{};
  std::string announce{};  // what others connect to, if it is not `listen`
  int64_t connect_timeout_ns = 30'000'000'000;
  int64_t silence_ns = 20'000'000'000;
  int64_t spin_ns = 0;  // see Transport; right where every rank has a core of its own
};

class HostEndpoint {
 public:
  // Throws a user error: no shared memory, no such address, port in use.
  explicit HostEndpoint(HostTransportOptions options);
  ~HostEndpoint();
  const HostAddress& address() const;
  // Once. `address_of` may be called at any time while the transport exists, from one thread at a time.
  std::unique_ptr<Transport> connect(std::function<HostAddress(int rank)> address_of);

 private:
  std::unique_ptr<class HostTransport> transport_;
};

}  // namespace athanor
