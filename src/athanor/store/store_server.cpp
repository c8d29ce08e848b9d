#include "athanor/store/store_server.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/doorkeeper.h"
#include "athanor/store/store_table.h"

namespace athanor {
namespace {

constexpr int64_t tick_ns = 50'000'000;
constexpr size_t read_bytes = 64 << 10;
constexpr size_t most_unread = 256;  // pieces of answers that a client may leave lying

// Strangers may take half of the descriptors.
size_t most_strangers() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 512;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 2, 16, 8192));
}

}  // namespace

class StoreServer::Implementation {
 public:
  explicit Implementation(StoreServerOptions options)
      : options_(std::move(options)),
        table_([this](StoreClientId id, const StoreReply& reply) { answer(id, reply); }),
        loop_("athanor-store", tick_ns, [this] { tick(); }) {
    auto doorkeeper = std::make_shared<Doorkeeper>(
        options_.secret, loop_,
        DoorkeeperOptions{.address = options_.listen,
                          .port = options_.port,
                          .most_strangers = most_strangers(),
                          .introduction_ns = options_.introduction_ns},
        [](const Introduction& introduction) { return introduction.to == -1; },
        [this](const Introduction&, Descriptor socket) { admit(std::move(socket)); });
    port_ = doorkeeper->port();
    loop_.post([this, doorkeeper = std::move(doorkeeper)] {
      doorkeeper_ = doorkeeper;
      doorkeeper_->open();
    });
  }

  ~Implementation() {
    const int64_t deadline = monotonic_ns() + options_.farewell_ns;
    // After an error of its owner only for those who get an answer by then, which may be who is missing:
    // clients behind a link that was cut never leave, and those who have longer to wait would get none.
    const bool failed = std::uncaught_exceptions() > 0;
    const auto is_needed = [&] {
      if (!failed) return clients_here_ > 0;
      bool due = false;
      in_loop([&] { due = table_.is_due_by(deadline); });
      return due;
    };
    while (is_needed() && monotonic_ns() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    in_loop([this] {
      doorkeeper_->close();
      while (!clients_.empty()) close(clients_.begin()->first);
    });
  }

  uint16_t port() const { return port_; }
  Counts counts() const { return {clients_here_, admitted_, requests_, replies_}; }

 private:
  struct Client {
    Descriptor socket;
    std::string input;
    std::deque<StorePiece> output;
    size_t written = 0;  // of the first piece
    uint32_t events = EPOLLIN;
    bool broken = false;
  };

  // Returns when it has been done there.
  void in_loop(const std::function<void()>& work) {
    std::mutex mutex;
    std::condition_variable done;
    bool ended = false;
    loop_.post([&] {
      work();
      const std::lock_guard lock(mutex);
      ended = true;
      done.notify_all();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return ended; });
  }

  void admit(Descriptor socket) {
    const StoreClientId id = next_client_++;
    const int number = socket.number();
    Client& client = clients_[id];
    client.socket = std::move(socket);
    ++admitted_;
    ++clients_here_;
    loop_.watch(number, client.events, [this, id](uint32_t events) { serve(id, events); });
  }

  void close(StoreClientId id) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    loop_.forget(found->second.socket.number());
    clients_.erase(found);
    --clients_here_;
    table_.forget(id);
  }

  void serve(StoreClientId id, uint32_t events) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    Client& client = found->second;
    if ((events & EPOLLOUT) != 0) {
      write(client);
      if (!client.broken) take_requests(id, client);  // those that had to wait
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !client.broken) read(id, client);
    if (client.broken) return close(id);
    watch(client);
  }

  // One that does not read its answers cannot ask for more.
  static bool is_full(const Client& client) { return client.output.size() > most_unread; }

  void watch(Client& client) {
    const uint32_t reading = is_full(client) ? 0 : uint32_t{EPOLLIN};
    const uint32_t events = reading | (client.output.empty() ? 0 : uint32_t{EPOLLOUT});
    if (events == client.events) return;
    client.events = events;
    loop_.change(client.socket.number(), events);
  }

  void read(StoreClientId id, Client& client) {
    const ssize_t got = recv(client.socket.number(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) {
      client.broken = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
      return;
    }
    client.input.append(buffer_.data(), static_cast<size_t>(got));
    take_requests(id, client);
  }

  void take_requests(StoreClientId id, Client& client) {
    constexpr size_t header_bytes = StoreRequestHeader::bytes;
    size_t at = 0;
    const std::string_view input = client.input;
    while (!client.broken && !is_full(client) && input.size() - at >= header_bytes) {
      const auto header = decode_request_header(input.substr(at, header_bytes));
      if (!header) {
        client.broken = true;
        break;
      }
      const size_t payload = size_t{header->key_bytes} + header->value_bytes;
      if (input.size() - at - header_bytes < payload) break;
      auto request = decode_request(*header, std::string(input.substr(at + header_bytes, payload)));
      at += header_bytes + payload;
      if (!request) {
        client.broken = true;
        break;
      }
      ++requests_;
      if (options_.delay_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(options_.delay_ns));
      table_.handle(id, std::move(*request), monotonic_ns());
    }
    client.input.erase(0, at);
    if (client.input.empty()) client.input = {};  // most clients ask once
  }

  // Called by the table, possibly for another client than the one that is being served: never ends one.
  void answer(StoreClientId id, const StoreReply& reply) {
    const auto found = clients_.find(id);
    if (found == clients_.end() || found->second.broken) return;
    Client& client = found->second;
    client.output.push_back(std::make_shared<const std::string>(
        encode_reply_header({reply.status, reply.number, static_cast<uint32_t>(reply.pieces.size())})));
    client.output.insert(client.output.end(), reply.pieces.begin(), reply.pieces.end());
    ++replies_;
    write(client);
    if (client.broken)
      loop_.post([this, id] { close(id); });
    else
      watch(client);
  }

  void write(Client& client) {
    while (!client.output.empty()) {
      std::array<iovec, 16> pieces{};
      size_t count = 0;
      for (; count < std::min(pieces.size(), client.output.size()); ++count) {
        const std::string& piece = *client.output[count];
        const size_t skip = count == 0 ? client.written : 0;
        // The system does not write to what it takes as writable.
        pieces[count] = {const_cast<char*>(piece.data()) + skip, piece.size() - skip};
      }
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = count;
      const ssize_t put = sendmsg(client.socket.number(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0) {
        if (errno == EINTR) continue;
        client.broken = errno != EAGAIN && errno != EWOULDBLOCK;
        return;
      }
      client.written += static_cast<size_t>(put);
      while (!client.output.empty() && client.written >= client.output.front()->size()) {
        client.written -= client.output.front()->size();
        client.output.pop_front();
      }
    }
  }

  void tick() {
    if (doorkeeper_) doorkeeper_->tick();
    table_.expire(monotonic_ns());
  }

  const StoreServerOptions options_;
  StoreTable table_;
  std::unordered_map<StoreClientId, Client> clients_;
  StoreClientId next_client_ = 0;
  std::array<char, read_bytes> buffer_{};
  std::atomic<int64_t> clients_here_{0}, admitted_{0}, requests_{0}, replies_{0};
  uint16_t port_ = 0;
  std::shared_ptr<Doorkeeper> doorkeeper_;  // from the loop's first moments on
  EventLoop loop_;                          // the last member: it ends before what its callbacks use
};

StoreServer::StoreServer(StoreServerOptions options)
    : implementation_(std::make_unique<Implementation>(std::move(options))) {}

StoreServer::~StoreServer() = default;

uint16_t StoreServer::port() const {
  return implementation_->port();
}

StoreServer::Counts StoreServer::counts() const {
  return implementation_->counts();
}

}  // namespace athanor
