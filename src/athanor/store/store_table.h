// What the store's server keeps, and who waits for what: no sockets, no threads.
//
// Called by store_server.cpp. Thread safety: one thread.
//
// Requests are answered through `answer`, at once or when what they wait for is there. What clients send is
// bounded: values and gatherings by `most_bytes` in all, what is announced is not allocated before it is
// there, but for one pointer a member.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "athanor/store/store_protocol.h"

namespace athanor {

using StoreClientId = uint64_t;

struct StoreReply {
  StoreStatus status = StoreStatus::value;
  uint64_t number = 0;
  std::vector<StorePiece> pieces;
};

class StoreTable {
 public:
  using Answer = std::function<void(StoreClientId client, const StoreReply& reply)>;
  static constexpr uint64_t most_bytes = 1 << 30;

  explicit StoreTable(Answer answer) : answer_(std::move(answer)) {}

  void handle(StoreClientId client, StoreRequest request, int64_t now_ns);
  void forget(StoreClientId client);      // it has gone
  void expire(int64_t now_ns);            // answers those whose time is over
  bool is_due_by(int64_t time_ns) const;  // some client gets its answer by then, if only that time is over

 private:
  struct Wait {
    StoreClientId client;
    uint64_t number;
    int64_t deadline_ns;
  };
  // Those who want the same members get the same piece.
  struct Wanted {
    MemberRange range;
    uint32_t missing = 0;
    StorePiece piece;                // once none is missing
    std::vector<uint64_t> visitors;  // that are told when it is complete
  };
  struct Visit {
    StoreClientId client;
    uint64_t number;
    int64_t deadline_ns;
    uint32_t first = 0, count = 0;  // the members it brought
    std::vector<Wanted*> wanted;
    size_t incomplete = 0;
  };
  struct Assembly {
    std::vector<StorePiece> values;  // by member; null: not come
    std::map<MemberRange, std::unique_ptr<Wanted>> wanted;
    std::map<uint64_t, Visit> visits;  // not yet answered
  };

  void change(StoreClientId client, const StoreRequest& request, std::string_view value);
  void gather(StoreClientId client, StoreRequest& request, int64_t now_ns);
  void come(Assembly& assembly, uint32_t member, StorePiece value);
  void withdraw(Assembly& assembly, const Visit& visit);
  Wanted* want(Assembly& assembly, const MemberRange& range);
  void complete(Assembly& assembly, Wanted& wanted);
  void reply(StoreClientId client, uint64_t number, StoreStatus status, std::vector<StorePiece> pieces = {});
  void refuse(StoreClientId client, uint64_t number, const std::string& why);
  bool has_room(uint64_t bytes) const { return bytes_ + bytes <= most_bytes; }

  const Answer answer_;
  std::unordered_map<std::string, StorePiece> values_;  // as they are sent
  std::unordered_map<std::string, std::vector<Wait>> waits_;
  std::map<std::string, Assembly> assemblies_;
  uint64_t bytes_ = 0, next_visit_ = 0;
};

}  // namespace athanor
