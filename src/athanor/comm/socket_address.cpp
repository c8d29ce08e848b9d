#include "athanor/comm/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace athanor {

std::optional<SocketAddress> socket_address(const std::string& address, uint16_t port) {
  SocketAddress result;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    result.length = sizeof(sockaddr_in);
    return result;
  }
  if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    result.length = sizeof(sockaddr_in6);
    return result;
  }
  return std::nullopt;
}

std::vector<SocketAddress> resolve_addresses(const std::string& host, uint16_t port) {
  if (const auto numeric = socket_address(host, port)) return {*numeric};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  std::vector<SocketAddress> all;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    SocketAddress& address = all.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, std::min<size_t>(each->ai_addrlen, sizeof address.storage));
    address.length = each->ai_addrlen;
  }
  freeaddrinfo(found);
  return all;
}

std::string numeric_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes =
      address.storage.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
  return inet_ntop(address.storage.ss_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 == 127;
  const in6_addr& bytes = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&bytes);
}

bool is_of_this_machine(const SocketAddress& address) {
  const auto anywhere = socket_address(numeric_text(address), 0);
  const Descriptor probe = tcp_socket(address.storage.ss_family);
  return anywhere && probe.is_open() && bind(probe.number(), anywhere->data(), anywhere->length) == 0;
}

uint16_t port_of_socket(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&storage)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
}

Descriptor tcp_socket(int family) {
  return Descriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_low_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Measured: BBR, the default of some systems, is a third slower than CUBIC on links without loss.
  constexpr std::string_view control = "cubic";
  setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, control.data(), static_cast<socklen_t>(control.size()));
}

}  // namespace athanor
