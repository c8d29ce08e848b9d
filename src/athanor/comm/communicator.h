// Collectives of one rank: groups, what is prepared when a program is loaded, and what runs on a stream.
//
// Called by execute, train and tests. Thread safety: groups and prepare by one thread before anything runs;
// start by the thread that feeds the stream; abort, set_phase and failed from any.
//
// Order. All collectives of a rank, over all of its groups, run on one stream in the order in which they were
// started, and all ranks must start those that they share in the same order; a message that belongs to
// another collective than the one that runs ends both ranks with a report of both orders. Failure. The first
// error (a peer that died or gave up, a wait that came to its deadline, damage) ends all collectives of the
// rank and those of its peers; it is thrown where the stream is synchronised, and again by whatever is
// started later. It says who is to blame and which collective of this rank it ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/comm/collective.h"
#include "athanor/comm/transport.h"
#include "athanor/device/device.h"

namespace athanor {

struct Group {
  GroupId id = 0;  // the same on every member, of no other group that shares a rank with this one
  std::string name;
  std::vector<int> ranks;  // members in their order
};

struct CommunicatorOptions {
  int64_t timeout_ns = 600'000'000'000;      // of one collective ...
  int64_t patience_ns = 14'400'000'000'000;  // ... and of one that is patient
  Algorithm algorithm =
      Algorithm::automatic;  // used wherever a collective names none and the operation has it
  std::vector<int> hosts;    // of each rank, a number; empty: all on one
};

// A collective that can be started any number of times.
class PreparedCollective {
 public:
  virtual ~PreparedCollective() = default;
  virtual Algorithm algorithm() const = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual int ranks_on_host() const = 0;    // on the host of this rank, itself counted
  virtual void add_group(Group group) = 0;  // again is no error if it has the same members
  // Memory that peers on this host can read where it is: collectives on it copy the least. See Transport.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes) = 0;

  // Throws a user error if the collective does not make sense. Its addresses must stay valid while it can be
  // started. Allocates scratch; start does not, unless counts are read when it runs.
  virtual std::unique_ptr<PreparedCollective> prepare(const Collective& collective) = 0;
  // `prepared` must live until the event is reached. `span`, if not null, gets when it ran.
  virtual Event start(PreparedCollective& prepared, Stream& stream, TimeSpan* span = nullptr) = 0;
  // At once, on the calling thread; not while a stream runs others.
  virtual void run(PreparedCollective& prepared) = 0;

  // Gives up with `reason`: pending and later collectives of this rank and of its peers end with an error.
  virtual void abort(const std::string& reason) = 0;
  // What this rank is doing, for the reports of others that wait for it.
  virtual void set_phase(std::string_view phase) = 0;
};

// Collectives made of steps, over a transport.
std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Transport> transport,
                                                CommunicatorOptions options);

}  // namespace athanor
