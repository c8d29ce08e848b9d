// The store's server among strangers and among thousands.
#include "athanor/store/store_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <thread>

#include "athanor/base/error.h"
#include "athanor/store/store_test_support.h"

namespace athanor {
namespace {

// The job goes on whatever the strangers do.
void expect_service(uint16_t port) {
  const int64_t begin = monotonic_ns();
  const auto store = connect_store(client_of(port));
  store->set("key", "value");
  EXPECT_EQ(store->get("key"), "value");
  EXPECT_LT(monotonic_ns() - begin, 5'000'000'000);
}

std::string random_bytes(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

std::string text_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(hello.data()), hello.size()};
}

TEST(StoreServer, RandomBytesDoNotGetIn) {
  const StoreServer server({.secret = Secret("test")});
  std::vector<Descriptor> strangers;
  for (uint32_t i = 0; i < 200; ++i)
    strangers.push_back(stranger(server.port(), random_bytes(1 + i * 37, i)));
  expect_service(server.port());
  // Those who have said as much as a hello are shown the door at once.
  EXPECT_TRUE(is_closed(strangers.back(), 5'000'000'000));
  EXPECT_EQ(server.counts().admitted, 1);
}

TEST(StoreServer, AnotherSecretDoesNotGetIn) {
  const StoreServer server({.secret = Secret("test")});
  StoreOptions wrong = client_of(server.port(), 3, "wrong");
  wrong.connect_timeout_ns = 300'000'000;
  try {
    connect_store(wrong);
    ADD_FAILURE() << "was let in";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("refuses: another secret"), std::string::npos) << error.message();
    EXPECT_NE(error.hint().find("same secret"), std::string::npos);
  }
  // Who has the secret and wants to speak to a rank is wrong here.
  const auto where = socket_address("127.0.0.1", server.port());
  OutgoingIntroduction introduction(*where, {.from = 0, .to = 1, .generation = 1});
  const Secret secret("test");
  const int64_t deadline = monotonic_ns() + 5'000'000'000;
  while (introduction.state() != OutgoingIntroduction::State::failed && monotonic_ns() < deadline)
    introduction.advance(secret);
  EXPECT_EQ(introduction.state(), OutgoingIntroduction::State::failed);
  EXPECT_EQ(server.counts().admitted, 0);
  expect_service(server.port());
}

TEST(StoreServer, AHelloOfYesterdayDoesNotGetIn) {
  const StoreServer server({.secret = Secret("test")});
  Challenge old{};
  const auto challenge = make_challenge(random_nonce());
  std::copy(challenge.begin(), challenge.end(), old.begin());
  const auto hello = answer_challenge(Secret("test"), old, {0, -1, 0}, random_nonce());
  EXPECT_TRUE(is_closed(stranger(server.port(), text_of(*hello)), 5'000'000'000));
  EXPECT_EQ(server.counts().admitted, 0);
}

TEST(StoreServer, HalfAHelloAndOneByteAtATimeAreGivenUpInTime) {
  const StoreServer server({.secret = Secret("test"), .introduction_ns = 400'000'000});
  const Descriptor half = stranger(server.port(), random_bytes(44, 1));
  const Descriptor silent = stranger(server.port());
  const Descriptor slow = stranger(server.port());
  const int64_t begin = monotonic_ns();
  // A byte every 20 ms does not keep it alive.
  while (monotonic_ns() - begin < 1'000'000'000) {
    (void)!::send(slow.number(), "x", 1, MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  expect_service(server.port());
  for (const Descriptor* each : {&half, &silent, &slow}) EXPECT_TRUE(is_closed(*each, 3'000'000'000));
}

TEST(StoreServer, AFriendWhoTalksNonsenseIsSentAway) {
  const StoreServer server({.secret = Secret("test")});
  StoreRequest request{StoreOperation::set, 1, 0, "key", "value"};
  std::string damaged = encode_request(request);
  damaged.back() ^= 1;
  // The header says 16 MiB, the rest never comes; the checksum of a header that says more is right too.
  request.value.assign(StoreRequestHeader::most_value, 'v');
  const std::string promised = encode_request(request).substr(0, StoreRequestHeader::bytes + 100);
  request.value.push_back('v');
  const std::string too_long = encode_request(request).substr(0, StoreRequestHeader::bytes);
  std::vector<StoreConnection> connections;
  for (const std::string& text : {random_bytes(1000, 7), damaged, too_long, promised}) {
    connections.emplace_back(*socket_address("127.0.0.1", server.port()), 0);
    connections.back().send(text);
  }
  const auto others_gone = [&] {
    return connections[0].failed() && connections[1].failed() && connections[2].failed();
  };
  EXPECT_TRUE(drive(connections, others_gone, [](size_t, const StoreAnswer&) {}, 5'000'000'000));
  EXPECT_FALSE(connections[3].failed());
  expect_service(server.port());
}

TEST(StoreServer, AFriendWhoDoesNotReadStopsNobody) {
  const StoreServer server({.secret = Secret("test"), .farewell_ns = 0});
  connect_store(client_of(server.port()))->set("large", std::string(4 << 20, 'x'));
  std::vector<StoreConnection> connections;
  connections.emplace_back(*socket_address("127.0.0.1", server.port()), 0);
  const Secret secret("test");
  while (!connections[0].introduced() && !connections[0].failed()) connections[0].advance(secret);
  // As many requests as the sockets take, and no answer read.
  const std::string request = encode_request({StoreOperation::get, 1, 0, "large", {}});
  std::string many;
  for (int i = 0; i < 2000; ++i) many += request;
  int64_t refused_since = 0;
  const int64_t begin = monotonic_ns();
  while (monotonic_ns() - begin < 5'000'000'000) {
    const ssize_t put =
        ::send(connections[0].socket(), many.data(), many.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0) {
      refused_since = 0;
      continue;
    }
    if (refused_since == 0) refused_since = monotonic_ns();
    if (monotonic_ns() - refused_since > 200'000'000) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_NE(refused_since, 0) << "the server reads without end";
  expect_service(server.port());
}

TEST(StoreServer, ThousandsOfStrangersDoNotKeepTheJobOut) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const StoreServer server({.secret = Secret("test")});
  const auto early = connect_store(client_of(server.port(), 1));
  // Both ends lie in this process; the server may run out of descriptors first, or of room for strangers.
  const auto many = std::min<rlim_t>(limit.rlim_cur, 20'000) / 2 - 50;
  std::vector<Descriptor> strangers;
  for (rlim_t i = 0; i < std::min<rlim_t>(many, 6000); ++i) {
    strangers.push_back(stranger(server.port(), i % 3 == 0 ? "GET / HTTP/1.1\r\n" : ""));
    if (!strangers.back().is_open()) break;
  }
  EXPECT_GT(strangers.size(), 100u);
  early->set("early", "1");
  EXPECT_EQ(early->get("early"), "1");
  expect_service(server.port());
}

// As many clients as the smallest input of the fault, or what the limit on descriptors allows.
size_t many_clients() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(4096, static_cast<size_t>(limit.rlim_cur) / 2 - 100);
}

TEST(StoreServer, P89_ThousandsThatConnectAtOnceAllGetTheKeyThatIsSetLast) {
  for (const bool slow : {false, true}) {
    const StoreServer server({.secret = Secret("test"), .delay_ns = slow ? 100'000 : 0});
    const size_t count = many_clients();
    std::vector<StoreConnection> connections;
    const auto where = socket_address("127.0.0.1", server.port());
    for (size_t i = 0; i < count; ++i) {
      connections.emplace_back(*where, static_cast<int>(i));
      connections.back().send(encode_request({StoreOperation::wait, i, 60'000, "key", {}}));
    }
    size_t answered = 0;
    std::vector<char> seen(count, 0);
    bool set = false;
    std::unique_ptr<Store> last;
    const bool all = drive(
        connections,
        [&] {
          if (!set && server.counts().requests == static_cast<int64_t>(count)) {
            set = true;
            last = connect_store(client_of(server.port()));
            last->set("key", "value");
          }
          return answered == count;
        },
        [&](size_t i, const StoreAnswer& answer) {
          if (answer.status == StoreStatus::value && answer.number == i && answer.pieces.front() == "value" &&
              seen[i] == 0) {
            seen[i] = 1;
            ++answered;
          }
        },
        60'000'000'000);
    EXPECT_TRUE(all) << answered << " of " << count << " were answered";
  }
}

TEST(StoreServer, P89_ItStaysUntilTheLastClientHasItsAnswers) {
  auto server = std::make_unique<StoreServer>(
      StoreServerOptions{.secret = Secret("test"), .farewell_ns = 60'000'000'000});
  // An answer of many MiB, far more than sockets hold, which its reader is slow to take.
  const std::string large(8 << 20, 'x');
  connect_store(client_of(server->port()))->set("large", large);
  std::vector<StoreConnection> slow;
  slow.emplace_back(*socket_address("127.0.0.1", server->port()), 0);
  const Secret secret("test");
  slow[0].send(encode_request({StoreOperation::get, 1, 0, "large", {}}));
  while (server->counts().replies < 2) slow[0].advance(secret);
  std::thread end([&] { server.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  bool whole = false;
  EXPECT_TRUE(drive(
      slow, [&] { return whole; },
      [&](size_t, const StoreAnswer& answer) { whole = answer.pieces.front() == large; }, 50'000'000'000))
      << slow[0].problem();
  slow.clear();
  end.join();
}

}  // namespace
}  // namespace athanor
