// The embedded store: one thread that serves every process of a job, one connection each.
//
// Called by launch (cluster/) and benchmarks. Thread safety: construction and destruction by one thread.
//
// Strangers are met by comm/doorkeeper.h. A client that sends what is no request is dropped; one that does
// not read its answers is not read from. Answers are kept once for all who get them, and written as their
// sockets take them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "athanor/comm/secret.h"

namespace athanor {

struct StoreServerOptions {
  Secret secret;
  std::string listen = "127.0.0.1";  // numeric address of this machine
  uint16_t port = 0;                 // 0: any
  // How long its end waits for clients that are still connected: whoever started late must find his answers.
  int64_t farewell_ns = 10'000'000'000;
  int64_t introduction_ns = 5'000'000'000;
  int64_t delay_ns = 0;  // for tests: before each answer, as on a machine that is overloaded
};

class StoreServer {
 public:
  // Throws a user error if it cannot listen.
  explicit StoreServer(StoreServerOptions options);
  // Waits for the clients to leave; where an error unwinds it, for those with requests that end in this time.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  uint16_t port() const;
  struct Counts {
    int64_t clients = 0, admitted = 0, requests = 0, replies = 0;
  };
  Counts counts() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace athanor
