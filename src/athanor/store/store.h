// The store of a job: a few small values that its processes share while they start, found by key.
//
// Called by rendezvous and launch (cluster/). Implementations: store_client.h (the embedded server),
// redis_store.h. Thread safety: all functions may be called from several threads.
//
// Keys are at most 1,024 bytes, values 16 MiB. Every wait has a deadline. Errors: Error(restart_worker) when
// the store cannot be reached or does not answer, user errors for what it refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "athanor/comm/secret.h"

namespace athanor {

// Members of a gathering: begin, begin + stride, ... , so many of them.
struct MemberRange {
  uint32_t begin = 0, stride = 1, count = 0;
  friend auto operator<=>(const MemberRange&, const MemberRange&) = default;
  bool holds(uint32_t member) const {
    if (member < begin) return false;
    const uint32_t distance = member - begin;
    return stride == 1 ? distance < count : distance % stride == 0 && distance / stride < count;
  }
};

// What one process brings to a gathering and wants from it.
struct Gathering {
  std::string key;
  uint32_t members = 0;             // in all; the same for everybody who comes
  uint32_t first = 0;               // member that ...
  std::vector<std::string> values;  // ... the first of these belongs to, the others to those after it
  std::vector<MemberRange> wanted;  // answered when all of these have come
};

// Values one after another in one piece of memory: thousands of clients hold thousands of them.
class ValueList {
 public:
  ValueList() = default;
  // Values that lie in `body` from each of `begins` on, each preceded by the 4 bytes of its length.
  ValueList(std::string body, std::vector<uint32_t> begins)
      : body_(std::move(body)), begins_(std::move(begins)) {}
  size_t size() const { return begins_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t end = i + 1 < begins_.size() ? begins_[i + 1] - 4 : body_.size();
    return std::string_view(body_).substr(begins_[i], end - begins_[i]);
  }

 private:
  std::string body_;
  std::vector<uint32_t> begins_;
};

struct Gathered {
  std::vector<ValueList> values;  // of each wanted range, in its order
  std::vector<uint32_t> missing;  // if the time is over: who has not come, the first thousand of ...
  uint32_t missing_count = 0;     // ... so many; then there are no values
};

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  virtual std::optional<std::string> get(std::string_view key) = 0;
  // The value as soon as there is one; nothing after `timeout_ns`.
  virtual std::optional<std::string> wait(std::string_view key, int64_t timeout_ns) = 0;
  // Adds to a number, 0 where there is none, and returns the sum. The value is its decimal text.
  virtual int64_t add(std::string_view key, int64_t amount) = 0;
  // Sets the value to `desired` if it is `expected` (empty: if there is none). Returns what is there then.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  virtual bool remove(std::string_view key) = 0;  // false: there was none
  // One message there, one back, whatever the number of members. A value that comes again must be the same;
  // one whose sender goes away before he was answered counts as not come.
  virtual Gathered gather(const Gathering& gathering, int64_t timeout_ns) = 0;
};

// Where a store is: "HOST:PORT", "redis://HOST:PORT" or "redis://HOST:PORT/NAME"; an IPv6 address stands in
// brackets, a name is of letters, digits, - and _.
struct StoreAddress {
  bool redis = false;
  std::string host;
  uint16_t port = 0;
  std::string name = {};  // of Redis: jobs with the same secret do not meet under different names
};
StoreAddress parse_store_address(std::string_view text);  // throws a user error
std::string to_text(const StoreAddress& address);

struct StoreOptions {
  StoreAddress address;
  Secret secret;                                // of the job; Redis: of its keys
  int rank = 0;                                 // who asks, for reports
  int64_t connect_timeout_ns = 60'000'000'000;  // until the store is there
  int64_t answer_timeout_ns = 30'000'000'000;   // of one answer, beyond the time it was asked to wait
  std::string password{};                       // of Redis, if it wants one
};
std::unique_ptr<Store> connect_store(const StoreOptions& options);

}  // namespace athanor
