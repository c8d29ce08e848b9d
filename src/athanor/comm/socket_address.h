// Sockets with numeric addresses, IPv4 and IPv6.
//
// Called by doorkeeper.h and introduction.h. Thread safety: pure functions.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "athanor/comm/shared_memory.h"

namespace athanor {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Empty if it is not a numeric address.
std::optional<SocketAddress> socket_address(const std::string& address, uint16_t port);
// Of a name or a numeric address; asks the system, which may take a while. Empty if nobody knows the name. A
// name may have several: those of loopback, of IPv4 and of IPv6, of which not all need to work.
std::vector<SocketAddress> resolve_addresses(const std::string& host, uint16_t port);
std::string numeric_text(const SocketAddress& address);
bool is_loopback(const SocketAddress& address);
bool is_of_this_machine(const SocketAddress& address);  // somebody could listen there
uint16_t port_of_socket(int socket);
// A TCP socket that does not block and does not wait to fill its segments; closed when there is none to be
// had.
Descriptor tcp_socket(int family);
void set_low_delay(int socket);

}  // namespace athanor
