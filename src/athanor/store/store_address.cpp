#include <algorithm>
#include <charconv>

#include "athanor/base/error.h"
#include "athanor/store/store.h"

namespace athanor {

StoreAddress parse_store_address(std::string_view text) {
  constexpr std::string_view scheme = "redis://";
  const auto refuse = [whole = text] {
    throw_user_error(fmt::format("'{}' is not the address of a store", whole.substr(0, 200)),
                     "HOST:PORT for the store that the job brings along, redis://HOST:PORT or "
                     "redis://HOST:PORT/NAME for Redis");
  };
  StoreAddress address;
  if (text.starts_with(scheme)) {
    address.redis = true;
    text.remove_prefix(scheme.size());
    if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
      address.name = text.substr(slash + 1);
      text = text.substr(0, slash);
      const auto is_plain = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
               c == '_';
      };
      if (address.name.empty() || address.name.size() > 100 ||
          !std::all_of(address.name.begin(), address.name.end(), is_plain))
        refuse();
    }
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) refuse();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse();
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc{} || end != port.data() + port.size() || address.port == 0 || host.empty() ||
      host.size() > 253)
    refuse();
  for (const char c : host)
    if (c <= ' ' || c == '/' || c == '@' || c > '~') refuse();
  address.host = host;
  return address;
}

std::string to_text(const StoreAddress& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}{}:{}{}{}", address.redis ? "redis://" : "", brackets ? "[" : "", address.host,
                     brackets ? "]" : "", address.port, address.name.empty() ? "" : "/", address.name);
}

}  // namespace athanor
