// The seam between collectives and what carries their messages: a link to each peer, a board, waiting, giving
// up.
//
// Called by interpreter.h and communicator.h. Implementations: thread_transport.h, host_transport.h. Thread
// safety: links, waiting, check and ask belong to one thread, the one that runs the rank's collectives;
// abort may be called from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/comm/collective.h"
#include "athanor/comm/rank_board.h"

namespace athanor {

// Which message of which collective it is: both sides must agree on all of it.
struct MessageHeader {
  GroupId group = -1;
  uint32_t signature = 0;  // of kind, types and counts
  uint64_t sequence = 0;   // of the collective in its group
  uint32_t kind = 0;       // CollectiveKind, for reports
  uint32_t index = 0;      // of the message among those of this collective from this sender to this receiver
  uint64_t bytes = 0;
  bool operator==(const MessageHeader&) const = default;
};

// What a rank says when it is asked how far it is.
struct RankAnswer {
  bool asked = false;  // there was a way to ask it
  std::optional<RankStatus> status = {};
};

// Messages to and from one peer, in order in each direction.
class Link {
 public:
  virtual ~Link() = default;
  // Hands a message over and returns at once. `data` (8-byte aligned) must stay as it is until taken() counts
  // the message.
  virtual void post(const MessageHeader& header, const std::byte* data) = 0;
  virtual uint64_t posted() const = 0;  // messages so far
  virtual uint64_t taken() = 0;         // messages of which the data may change
  // The message that is being read: null if none has begun to arrive.
  virtual const MessageHeader* front() = 0;
  // Its bytes that can be read now, from where reading has come to; whole elements, whatever their type.
  virtual std::span<const std::byte> readable() = 0;
  virtual void take(size_t bytes) = 0;  // goes on after them; after the last one to the next message

  // Where both sides share memory a message may be written straight to where its reader wants it. The reader
  // offers the place before it sends anything of the same collective; the sender asks for it (null: it must
  // post), writes, and says so; the reader finds the message written, with nothing to read.
  virtual void offer(const MessageHeader&, std::byte*) {}
  virtual std::byte* offered(const MessageHeader&) { return nullptr; }
  virtual void post_written(const MessageHeader&) {}
  virtual bool is_written() { return false; }  // the message that front() names
  virtual void take_written() {}

  // Moves on what could not be handed over at once; true while something is left.
  virtual bool progress() = 0;
};

// Whoever wanted to wake and comes so much later was stopped, or got no core: not a matter of its peers.
inline constexpr int64_t stopped_ns = 500'000'000;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual Link& link(int peer) = 0;
  virtual RankBoard& board() = 0;
  // 64-byte aligned, zeroed memory that peers may be able to read where it is. The pointer keeps it alive; it
  // must not be freed while a collective uses it.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes) = 0;

  virtual void progress() = 0;  // of all links
  // Throws the reason once the transport, or a peer, has given up.
  virtual void check() = 0;
  // Gives up: every wait of this rank and of its peers ends with `reason`. The first reason stays.
  virtual void abort(const std::string& reason) = 0;
  // What the ranks show, by position in `of`; no status of those that did not answer until `until_ns`
  // (monotonic).
  virtual std::vector<RankAnswer> ask(std::span<const int> of, int64_t until_ns) = 0;
  // How long a waiter may keep its core before it lets others run.
  virtual int64_t spin_ns() const = 0;
};

}  // namespace athanor
