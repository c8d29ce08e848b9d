// Whatever a Store promises, by the embedded server and by Redis where it is installed.
#include "athanor/store/store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/store/store_server.h"
#include "athanor/store/store_test_support.h"

namespace athanor {
namespace {

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

// A Redis of the test's own, on a socket of loopback, gone with it.
class RedisServer {
 public:
  static constexpr const char* program = "/usr/bin/redis-server";
  static bool is_installed() { return access(program, X_OK) == 0; }

  explicit RedisServer(const std::string& password = {}, uint16_t port_wanted = 0) : port_(port_wanted) {
    // Some free port: nothing else takes it within a moment.
    if (port_ == 0) {
      const Descriptor probe = tcp_socket(AF_INET);
      const auto any = socket_address("127.0.0.1", 0);
      EXPECT_EQ(bind(probe.number(), any->data(), any->length), 0);
      port_ = port_of_socket(probe.number());
    }
    const std::string port = std::to_string(port_), folder = folder_.path("");
    child_ = fork();
    if (child_ == 0) {
      (void)!freopen("/dev/null", "w", stdout);
      execl(program, program, "--port", port.c_str(), "--bind", "127.0.0.1", "--save", "", "--dir",
            folder.c_str(), "--requirepass", password.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~RedisServer() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  uint16_t port() const { return port_; }

 private:
  TemporaryFolder folder_;
  uint16_t port_ = 0;
  pid_t child_ = -1;
};

void check_values(Store& one, Store& other) {
  EXPECT_EQ(one.get("nothing"), std::nullopt);
  one.set("key", "value");
  EXPECT_EQ(other.get("key"), "value");
  one.set("key", std::string("\0new", 4));
  EXPECT_EQ(other.get("key"), std::string("\0new", 4));
  one.set("empty", "");
  EXPECT_EQ(other.get("empty"), "");
  EXPECT_TRUE(other.remove("key"));
  EXPECT_FALSE(one.remove("key"));
  EXPECT_EQ(one.get("key"), std::nullopt);
  EXPECT_EQ(one.add("counter", 7), 7);
  EXPECT_EQ(other.add("counter", -10), -3);
  EXPECT_EQ(one.get("counter"), "-3");
  EXPECT_EQ(one.compare_set("leader", "", "one"), "one");
  EXPECT_EQ(other.compare_set("leader", "", "other"), "one");
  EXPECT_EQ(other.compare_set("leader", "one", "other"), "other");
  EXPECT_EQ(one.compare_set("nobody", "somebody", "me"), "");
  const std::string large(3 << 20, 'x');
  one.set("large", large);
  EXPECT_EQ(other.get("large"), large);
  EXPECT_THROW(one.set("", "value"), Error);
  EXPECT_THROW(one.set(std::string(1025, 'k'), "value"), Error);
}

void check_waits(Store& one, Store& other) {
  const int64_t begin = monotonic_ns();
  EXPECT_EQ(one.wait("late", 200'000'000), std::nullopt);
  EXPECT_GE(monotonic_ns() - begin, 190'000'000);
  EXPECT_LT(monotonic_ns() - begin, 5'000'000'000);
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    other.set("late", "here");
  });
  EXPECT_EQ(one.wait("late", 20'000'000'000), "here");
  EXPECT_EQ(one.wait("late", 0), "here");
  setter.join();
  std::thread adder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    other.add("sum", 3);
  });
  EXPECT_EQ(one.wait("sum", 20'000'000'000), "3");
  adder.join();
}

void check_gathering(const std::function<std::unique_ptr<Store>(int rank)>& connect) {
  constexpr uint32_t members = 6;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (uint32_t rank = 0; rank < members; ++rank)
    threads.emplace_back([&, rank] {
      const auto store = connect(static_cast<int>(rank));
      const Gathered gathered = store->gather(
          {"ranks", members, rank, {"address " + std::to_string(rank)}, {{0, 1, 6}, {rank % 2, 2, 3}}},
          20'000'000'000);
      bool good =
          gathered.values.size() == 2 && gathered.values[0].size() == 6 && gathered.values[1].size() == 3;
      for (uint32_t i = 0; good && i < 6; ++i)
        good = gathered.values[0][i] == "address " + std::to_string(i) &&
               gathered.values[1][i / 2] == "address " + std::to_string(i / 2 * 2 + rank % 2);
      right += good ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 6);
  // Somebody who comes late wants some only, and brings nothing.
  const auto late = connect(7);
  const Gathered some = late->gather({"ranks", members, 0, {}, {{5, 1, 1}}}, 0);
  ASSERT_EQ(some.values.size(), 1u);
  ASSERT_EQ(some.values[0].size(), 1u);
  EXPECT_EQ(some.values[0][0], "address 5");
  // Comes again, and comes as another.
  EXPECT_TRUE(late->gather({"ranks", members, 3, {"address 3"}, {}}, 0).values.empty());
  EXPECT_NE(message_of([&] {
              late->gather({"ranks", members, 3, {"address 4"}, {}}, 0);
            }).find("number 3 has come before, and was another"),
            std::string::npos);
  // Those who have not come are named.
  const Gathered few = late->gather({"few", 5, 1, {"a", "b"}, {{0, 1, 5}}}, 100'000'000);
  EXPECT_TRUE(few.values.empty());
  EXPECT_EQ(few.missing_count, 3u);
  EXPECT_EQ(few.missing, (std::vector<uint32_t>{0, 3, 4}));
}

TEST(Store, KeepsValuesNumbersAndGatherings) {
  const StoreServer server({.secret = Secret("test")});
  const auto one = connect_store(client_of(server.port())),
             other = connect_store(client_of(server.port(), 1));
  check_values(*one, *other);
  check_waits(*one, *other);
  EXPECT_NE(message_of([&] { one->add("empty", 1); }).find("'empty' is not a number"), std::string::npos);
  one->set("most", "9223372036854775807");
  EXPECT_NE(message_of([&] { one->add("most", 1); }).find("too large"), std::string::npos);
  check_gathering([&](int rank) { return connect_store(client_of(server.port(), rank)); });
  EXPECT_NE(message_of([&] { one->gather({"ranks", 7, 0, {"x"}, {}}, 0); }).find("says 7 members"),
            std::string::npos);
  EXPECT_THROW(one->gather({"out", 3, 0, {}, {{0, 2, 3}}}, 0), Error);
}

TEST(Store, RedisKeepsTheSame) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "there is no redis-server";
  const RedisServer server("password");
  const auto connect = [&](int rank) {
    StoreOptions options = client_of(server.port(), rank);
    options.address.redis = true;
    options.password = "password";
    return connect_store(options);
  };
  const auto one = connect(0), other = connect(1);
  check_values(*one, *other);
  check_waits(*one, *other);
  check_gathering(connect);
  StoreOptions wrong = client_of(server.port());
  wrong.address.redis = true;
  EXPECT_NE(message_of([&] { connect_store(wrong); }).find("wants a password"), std::string::npos);
  wrong.password = "wrong";
  EXPECT_NE(message_of([&] { connect_store(wrong); }).find("another password"), std::string::npos);
}

// A job that was begun again with the same secret, and finds the keys of the last time.
TEST(Store, RedisGathersThoseWhoAreThereNow) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "there is no redis-server";
  const RedisServer server;
  const auto gather = [&](uint32_t rank, const std::string& value) {
    StoreOptions options = client_of(server.port(), static_cast<int>(rank));
    options.address.redis = true;
    const Gathered gathered =
        connect_store(options)->gather({"ranks", 2, rank, {value}, {{0, 1, 2}}}, 20'000'000'000);
    return gathered.values.size() == 1 && gathered.values[0].size() == 2
               ? fmt::format("{} {}", gathered.values[0][0], gathered.values[0][1])
               : "missing";
  };
  // The second time rank 1 has the same address.
  for (const char* zero : {"first", "second"}) {
    std::string seen;
    std::thread other([&] { seen = gather(0, zero); });
    EXPECT_EQ(gather(1, "one"), fmt::format("{} one", zero));
    other.join();
    EXPECT_EQ(seen, fmt::format("{} one", zero));
  }
}

TEST(Store, ARedisThatComesBackIsComeToAnew) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "there is no redis-server";
  auto server = std::make_unique<RedisServer>();
  const uint16_t port = server->port();
  const auto gather = [&](uint32_t rank) {
    StoreOptions options = client_of(port, static_cast<int>(rank));
    options.address.redis = true;
    return connect_store(options)
        ->gather({"ranks", 2, rank, {fmt::format("{}", rank)}, {{0, 1, 2}}}, 20'000'000'000)
        .values.size();
  };
  size_t seen = 0;
  std::thread waiting([&] { seen = gather(0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  server.reset();
  server = std::make_unique<RedisServer>("", port);
  EXPECT_EQ(gather(1), 1u);
  waiting.join();
  EXPECT_EQ(seen, 1u);
}

TEST(Store, JobsOnOneRedisDoNotMeet) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "there is no redis-server";
  const RedisServer server;
  StoreOptions options = client_of(server.port(), 0, "first job");
  options.address.redis = true;
  const auto first = connect_store(options);
  options.address.name = "named";
  const auto named = connect_store(options);
  options.address.name = "";
  options.secret = Secret("second job");
  const auto second = connect_store(options);
  first->set("key", "first");
  EXPECT_EQ(second->get("key"), std::nullopt);
  EXPECT_EQ(named->get("key"), std::nullopt);
  EXPECT_EQ(first->get("key"), "first");
}

TEST(Store, WhoeverGoesAwayUnansweredHasNotCome) {
  const StoreServer server({.secret = Secret("test")});
  std::vector<StoreConnection> early;
  early.emplace_back(*socket_address("127.0.0.1", server.port()), 0);
  StoreRequest request{StoreOperation::gather, 1, 60'000, "ranks", {}};
  request.value = encode_gathering({"ranks", 2, 0, {"early"}, {{0, 1, 2}}});
  early[0].send(encode_request(request));
  ASSERT_TRUE(drive(
      early, [&] { return server.counts().requests == 1; }, [](size_t, const StoreAnswer&) {},
      10'000'000'000));
  early.clear();
  const auto store = connect_store(client_of(server.port(), 1));
  const int64_t deadline = monotonic_ns() + 10'000'000'000;
  while (server.counts().clients > 1 && monotonic_ns() < deadline) std::this_thread::yield();
  const Gathered gathered = store->gather({"ranks", 2, 1, {"late"}, {{0, 1, 2}}}, 100'000'000);
  EXPECT_EQ(gathered.missing, std::vector<uint32_t>{0});
  // In its place another may come.
  const auto again = connect_store(client_of(server.port(), 0));
  std::thread first([&] { again->gather({"ranks", 2, 0, {"anew"}, {{0, 1, 2}}}, 10'000'000'000); });
  const Gathered both = store->gather({"ranks", 2, 1, {"late"}, {{0, 1, 2}}}, 10'000'000'000);
  first.join();
  ASSERT_EQ(both.values.size(), 1u);
  ASSERT_EQ(both.values[0].size(), 2u);
  EXPECT_EQ(both.values[0][0], "anew");
  EXPECT_EQ(both.values[0][1], "late");
}

TEST(Store, P90_TimeOutsOfTheStoreCountFromTheBeginningAndNameIt) {
  for (const bool answers : {false, true}) {
    // Nobody listens; somebody accepts and never speaks.
    const Descriptor silent = tcp_socket(AF_INET);
    const auto any = socket_address("127.0.0.1", 0);
    ASSERT_EQ(bind(silent.number(), any->data(), any->length), 0);
    if (answers) {
      ASSERT_EQ(listen(silent.number(), 10), 0);
    }
    StoreOptions options = client_of(port_of_socket(silent.number()), 5);
    options.connect_timeout_ns = 700'000'000;
    const int64_t begin = monotonic_ns();
    const std::string message = message_of([&] { connect_store(options); });
    EXPECT_LT(monotonic_ns() - begin, 7'000'000'000);
    EXPECT_NE(
        message.find(fmt::format("the job's store at 127.0.0.1:{} could not be reached by rank 5 within "
                                 "0.7 s",
                                 options.address.port)),
        std::string::npos)
        << message;
  }
}

// Its owner has failed. Whoever is about to learn who is missing does; who has time left keeps nobody.
TEST(Store, AServerOfAFailedOwnerStaysForAnswersThatAreDueOnly) {
  Gathered due;
  std::thread soon, late;
  const int64_t begin = monotonic_ns();
  try {
    const StoreServer server({.secret = Secret("test"), .farewell_ns = 20'000'000'000});
    StoreOptions patient = client_of(server.port(), 1);
    patient.connect_timeout_ns = 100'000'000;  // it looks for another store no longer
    soon = std::thread([&due, store = connect_store(client_of(server.port(), 0))] {
      due = store->gather({"ranks", 3, 0, {"first"}, {{0, 1, 3}}}, 1'000'000'000);
    });
    late = std::thread([store = connect_store(patient)] {
      EXPECT_THROW(store->gather({"ranks", 3, 1, {"second"}, {{0, 1, 3}}}, 60'000'000'000), Error);
    });
    while (server.counts().requests < 2 && monotonic_ns() - begin < 10'000'000'000) std::this_thread::yield();
    throw_user_error("the owner fails");
  } catch (const Error&) {
    EXPECT_LT(monotonic_ns() - begin, 10'000'000'000);
  }
  soon.join();
  late.join();
  EXPECT_EQ(due.missing, (std::vector<uint32_t>{2}));
}

TEST(Store, AServerThatFallsSilentIsNotWaitedForLongerThanSaid) {
  auto server = std::make_unique<StoreServer>(
      StoreServerOptions{.secret = Secret("test"), .farewell_ns = 0, .delay_ns = 3'000'000'000});
  StoreOptions options = client_of(server->port());
  options.answer_timeout_ns = 300'000'000;
  const auto store = connect_store(options);
  EXPECT_NE(message_of([&] { store->get("key"); }).find("has not answered for 0.3 s"), std::string::npos);
  EXPECT_EQ(server->counts().replies, 0);
}

TEST(Store, AConnectionThatIsLostIsMadeAnew) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.secret = Secret("test"), .farewell_ns = 0});
  const uint16_t port = server->port();
  const auto store = connect_store(client_of(port));
  store->set("key", "1");
  server.reset();
  server = std::make_unique<StoreServer>(
      StoreServerOptions{.secret = Secret("test"), .port = port, .farewell_ns = 0});
  EXPECT_EQ(store->get("key"), std::nullopt);  // it is another
  store->set("key", "2");
  EXPECT_EQ(store->get("key"), "2");
}

TEST(StoreAddress, SaysHostPortAndKind) {
  EXPECT_EQ(to_text(parse_store_address("node-7.cluster:29400")), "node-7.cluster:29400");
  EXPECT_EQ(to_text(parse_store_address("redis://10.0.0.5:6379")), "redis://10.0.0.5:6379");
  EXPECT_EQ(parse_store_address("[fd00::5]:80").host, "fd00::5");
  EXPECT_EQ(to_text(parse_store_address("[fd00::5]:80")), "[fd00::5]:80");
  EXPECT_EQ(to_text(parse_store_address("redis://10.0.0.5:6379/my-job_1")), "redis://10.0.0.5:6379/my-job_1");
  for (const char* wrong :
       {"redis://h:1/", "redis://h:1/a b", "h:1/a", "", "host", "host:", ":80", "host:0", "host:65536",
        "host:1x", "fd00::5:80", "http://host:80", "user@host:80", "ho st:80", "[]:80"})
    EXPECT_THROW(parse_store_address(wrong), Error) << wrong;
}

}  // namespace
}  // namespace athanor
