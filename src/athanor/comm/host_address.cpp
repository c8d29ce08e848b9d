#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/comm/host_transport.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw_user_error(fmt::format("'{}' is not the address of a rank", text.substr(0, 200)));
}

// The text up to the next space, which is taken away with it.
std::string_view take_field(std::string_view& text) {
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
  return fmt::format("{} {} {} {} {} {} {}", address.rank, address.generation, address.host, address.process,
                     address.segment, address.port, address.address);
}

HostAddress parse_host_address(std::string_view text) {
  const std::string_view whole = text;
  if (std::count(text.begin(), text.end(), ' ') != 6) refuse(whole);
  HostAddress address;
  address.rank = number_in<int>(take_field(text), whole);
  address.generation = number_in<uint64_t>(take_field(text), whole);
  address.host = take_field(text);
  address.process = number_in<pid_t>(take_field(text), whole);
  address.segment = number_in<int>(take_field(text), whole);
  address.port = number_in<uint16_t>(take_field(text), whole);
  address.address = text;
  if (address.rank < 0 || address.process <= 0 || address.segment < 0) refuse(whole);
  return address;
}

// Booted once, with one table of processes: a container has another table.
std::string this_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat processes{};
  const bool known = !boot.empty() && stat("/proc/self/ns/pid", &processes) == 0;
  // Without either nobody can be said to be on the same host.
  const std::string name =
      known ? fmt::format("{}/{}", boot, processes.st_ino) : fmt::format("{}/unknown", getpid());
  return fmt::format("{:016x}", stable_hash(name));  // short: every rank gets it from thousands
}

}  // namespace athanor
