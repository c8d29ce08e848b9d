#include <poll.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/store/redis_store.h"
#include "athanor/store/store_connection.h"

namespace athanor {
namespace {

constexpr int64_t first_try_ns = 1'000'000'000, longest_try_ns = 16'000'000'000;
constexpr int64_t first_pause_ns = 20'000'000, longest_pause_ns = 2'000'000'000;

// The embedded store, from the other side. Each operation is one request and one answer.
class StoreClient final : public Store {
 public:
  explicit StoreClient(StoreOptions options)
      : options_(std::move(options)), name_(to_text(options_.address)) {
    const std::lock_guard lock(mutex_);
    connect(monotonic_ns() + options_.connect_timeout_ns);
  }

  void set(std::string_view key, std::string_view value) override {
    ask({StoreOperation::set, 0, 0, std::string(key), std::string(value)}, 0, true);
  }

  std::optional<std::string> get(std::string_view key) override {
    return value_of(ask({StoreOperation::get, 0, 0, std::string(key), {}}, 0, true));
  }

  std::optional<std::string> wait(std::string_view key, int64_t timeout_ns) override {
    return value_of(
        ask({StoreOperation::wait, 0, milliseconds(timeout_ns), std::string(key), {}}, timeout_ns, true));
  }

  int64_t add(std::string_view key, int64_t amount) override {
    const auto value = value_of(ask({StoreOperation::add, 0, amount, std::string(key), {}}, 0, false));
    return std::stoll(value.value_or("0"));
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    const std::vector<StorePiece> parts = {std::make_shared<const std::string>(expected),
                                           std::make_shared<const std::string>(desired)};
    return value_of(
               ask({StoreOperation::compare_set, 0, 0, std::string(key), encode_values(parts)}, 0, false))
        .value_or("");
  }

  bool remove(std::string_view key) override {
    return ask({StoreOperation::remove, 0, 0, std::string(key), {}}, 0, false).status == StoreStatus::value;
  }

  Gathered gather(const Gathering& gathering, int64_t timeout_ns) override {
    StoreAnswer answer =
        ask({StoreOperation::gather, 0, milliseconds(timeout_ns), gathering.key, encode_gathering(gathering)},
            timeout_ns, true);
    Gathered gathered;
    if (answer.status == StoreStatus::timed_out) {
      if (answer.pieces.size() != 1 || !decode_missing(answer.pieces.front(), gathered)) lose("is no store");
      return gathered;
    }
    if (answer.pieces.size() != gathering.wanted.size()) lose("does not answer what it was asked");
    for (std::string& piece : answer.pieces) {
      auto values = decode_values(std::move(piece));
      if (!values) lose("does not answer what it was asked");
      gathered.values.push_back(std::move(*values));
    }
    return gathered;
  }

 private:
  static int64_t milliseconds(int64_t nanoseconds) { return (nanoseconds + 999'999) / 1'000'000; }

  [[noreturn]] void lose(const std::string& what) const {
    throw Error(ErrorKind::restart_worker, fmt::format("the job's store at {} {}", name_, what),
                "is the process that keeps it still running, and do all have the same secret?");
  }

  // Between tries: longer each time, and not for all ranks the same.
  int64_t pause_after(int tries) const {
    const int64_t most = std::min(longest_pause_ns, first_pause_ns << std::min(tries, 10));
    return most / 2 + static_cast<int64_t>(mix64(static_cast<uint64_t>(options_.rank) * 1000003 +
                                                 static_cast<uint64_t>(tries)) %
                                           static_cast<uint64_t>(most / 2 + 1));
  }

  // Until the connection can be used. A try that takes long may have been lost among thousands: the next one
  // gets more time.
  void connect(int64_t deadline_ns) {
    std::string problem;
    for (int tries = 0;; ++tries) {
      const auto all = resolve_addresses(options_.address.host, options_.address.port);
      const int64_t give_up = std::min(
          deadline_ns,
          monotonic_ns() + std::min(longest_try_ns, first_try_ns << std::min(tries, 6)) + pause_after(tries));
      if (all.empty()) {
        problem = "has a name that is not known";
      } else {
        connection_ = StoreConnection(all[static_cast<size_t>(tries) % all.size()], options_.rank);
        while (!connection_.failed() && !connection_.introduced() && monotonic_ns() < give_up) {
          await(give_up);
          connection_.advance(options_.secret);
        }
        if (connection_.introduced() && !connection_.failed()) return;
        problem = connection_.failed() ? connection_.problem() : "does not answer";
      }
      const int64_t pause = pause_after(tries);
      if (monotonic_ns() + pause >= deadline_ns) break;
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    }
    connection_ = StoreConnection();
    lose(fmt::format("could not be reached by rank {} within {:.1f} s: {}", options_.rank,
                     seconds_of(options_.connect_timeout_ns), problem));
  }

  void await(int64_t until_ns) {
    pollfd wanted{connection_.socket(), static_cast<short>(connection_.events()), 0};
    const int64_t left = std::clamp<int64_t>(until_ns - monotonic_ns(), 0, 3'600'000'000'000);
    poll(&wanted, 1, static_cast<int>((left + 999'999) / 1'000'000));
  }

  // `again`: it may be asked again when the connection was lost before the answer.
  StoreAnswer ask(StoreRequest request, int64_t waits_ns, bool again) {
    check_request(request);
    const std::lock_guard lock(mutex_);
    const int64_t begun = monotonic_ns();
    // The server's own time-out comes first: it knows more.
    const int64_t deadline = begun + std::max<int64_t>(0, waits_ns) + options_.answer_timeout_ns;
    request.number = ++number_;
    const int64_t amount = request.amount;
    for (int tries = 0;; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(pause_after(tries)));
      if (!connection_.introduced() || connection_.failed())
        connect(std::min(deadline, monotonic_ns() + options_.connect_timeout_ns));
      if (waits_ns > 0) request.amount = std::max<int64_t>(0, amount - (monotonic_ns() - begun) / 1'000'000);
      connection_.send(encode_request(request));
      while (!connection_.failed() && monotonic_ns() < deadline) {
        if (auto answer = connection_.advance(options_.secret)) {
          if (answer->number != request.number) continue;  // of one that was given up
          if (answer->status == StoreStatus::refused)
            throw_user_error(fmt::format("the job's store at {} refuses '{}': {}", name_, request.key,
                                         answer->pieces.empty() ? "" : answer->pieces.front()));
          return std::move(*answer);
        }
        if (!connection_.failed()) await(deadline);
      }
      const bool lost = connection_.failed();
      const std::string problem = lost ? connection_.problem() : "";
      connection_ = StoreConnection();
      if (!lost) lose(fmt::format("has not answered for {:.1f} s", seconds_of(monotonic_ns() - begun)));
      if (!again || monotonic_ns() >= deadline) lose(problem);
    }
  }

  std::optional<std::string> value_of(StoreAnswer answer) const {
    if (answer.status != StoreStatus::value) return std::nullopt;
    if (answer.pieces.size() != 1) lose("does not answer what it was asked");
    return std::move(answer.pieces.front());
  }

  const StoreOptions options_;
  const std::string name_;
  std::mutex mutex_;  // guards what follows
  StoreConnection connection_;
  uint64_t number_ = 0;
};

}  // namespace

std::unique_ptr<Store> connect_store(const StoreOptions& options) {
  if (options.address.redis) return connect_redis(options);
  return std::make_unique<StoreClient>(options);
}

}  // namespace athanor
