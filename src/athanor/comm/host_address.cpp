#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "athanor/base/error.h"
#include "athanor/comm/host_transport.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw_user_error(fmt::format("'{}' is not the address of a rank", text.substr(0, 200)));
}

// The value of `name=` at the front of `text`, up to the next space, which is taken away.
std::string_view take_field(std::string_view& text, std::string_view name, std::string_view whole) {
  if (!text.starts_with(name) || text.size() <= name.size() || text[name.size()] != '=') refuse(whole);
  text.remove_prefix(name.size() + 1);
  const size_t end = std::min(text.find(' '), text.size());
  const std::string_view value = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return value;
}

template <class Number>
Number number_in(std::string_view text, std::string_view whole) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(whole);
  return number;
}

}  // namespace

std::string to_text(const HostAddress& address) {
  return fmt::format("rank={} generation={} host={} process={} segment={} address={} port={}", address.rank,
                     address.generation, address.host, address.process, address.segment, address.address,
                     address.port);
}

HostAddress parse_host_address(std::string_view text) {
  const std::string_view whole = text;
  HostAddress address;
  address.rank = number_in<int>(take_field(text, "rank", whole), whole);
  address.generation = number_in<uint64_t>(take_field(text, "generation", whole), whole);
  address.host = take_field(text, "host", whole);
  address.process = number_in<pid_t>(take_field(text, "process", whole), whole);
  address.segment = number_in<int>(take_field(text, "segment", whole), whole);
  address.address = take_field(text, "address", whole);
  address.port = number_in<uint16_t>(take_field(text, "port", whole), whole);
  if (!text.empty() || address.rank < 0 || address.process <= 0 || address.segment < 0) refuse(whole);
  return address;
}

// Booted once, with one table of processes: a container has another table.
std::string this_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat processes{};
  const bool known = !boot.empty() && stat("/proc/self/ns/pid", &processes) == 0;
  // Without either nobody can be said to be on the same host.
  return known ? fmt::format("{}/{}", boot, processes.st_ino) : fmt::format("{}/unknown", getpid());
}

}  // namespace athanor
