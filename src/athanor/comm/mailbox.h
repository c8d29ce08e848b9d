// Messages between two ranks that share memory: one reader, one writer, no lock and no system call.
//
// Called by thread_transport.h and host_transport.h. Thread safety: a link belongs to one thread; the two
// ends may be in different processes.
//
// A message is one or more fragments. A fragment lies in the mailbox (short messages, and long ones from
// memory that the reader cannot see) or stays where the sender has it and is read there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "athanor/comm/transport.h"

namespace athanor {

// Lies in the reader's memory; all zero is an empty one.
struct Mailbox {
  static constexpr uint64_t slots = 64;
  static constexpr uint64_t ring_bytes = 512 << 10;
  static constexpr uint32_t in_ring = 0;          // value of Slot::region
  static constexpr uint32_t where_offered = ~0U;  // another one: the message lies at the reader's
  static constexpr uint64_t offers = 16;          // more are never open at a time

  struct Slot {
    MessageHeader header;
    uint64_t bytes = 0;   // of this fragment
    uint64_t offset = 0;  // of its first byte in the region
    uint32_t region = in_ring;
    uint32_t checksum = 0;  // of the fragment, where checksums are on
  };
  std::atomic<uint32_t> attached{0};              // the writer has mapped the reader's memory
  alignas(64) std::atomic<uint64_t> posted{0};    // fragments; by the writer
  alignas(64) std::atomic<uint64_t> consumed{0};  // fragments; by the reader
  alignas(64) std::array<Slot, slots> slot;
  // By the reader, for messages to come. Later ones take the places of earlier ones.
  struct Offer {
    MessageHeader header;
    uint64_t offset = 0;
    uint32_t region = 0;
  };
  alignas(64) std::atomic<uint64_t> offered{0};
  std::array<Offer, offers> offer;
  alignas(64) std::array<std::byte, ring_bytes> ring;
};

// Where bytes lie that a peer can read in place.
struct SharedPlace {
  uint32_t region = 0;  // not Mailbox::in_ring
  uint64_t offset = 0;
};

// What the two ends need of their transport.
struct MailboxHooks {
  // Where the peer can see [data, data + bytes), if it can.
  std::function<std::optional<SharedPlace>(const std::byte* data, uint64_t bytes)> share;
  // The peer's bytes in this rank's memory; throws if they do not exist.
  std::function<const std::byte*(SharedPlace place, uint64_t bytes)> resolve;
};

// What a test may do to the messages of a rank.
struct MessageFaults {
  int64_t delay_ns = 0;         // before each is handed over
  bool zero_buffering = false;  // nothing is copied: a sender waits until its reader has come
  bool always_copy = false;     // nothing is read in place
  bool checksums = false;
  // The n-th fragment posted to this peer is left out, swapped with the next, or changed in one bit;
  // negative: none.
  int64_t drop = -1, swap = -1, corrupt = -1;
};

class MailboxLink final : public Link {
 public:
  static constexpr uint64_t offer_from = 32 << 10;  // bytes: shorter ones are not worth it
  static constexpr uint64_t copy_below = 8 << 10;  // bytes: shorter messages are copied, so that nobody waits
  static constexpr uint64_t largest_copy = 64 << 10;  // bytes of a fragment in the ring

  // `out` lies with the peer, whose bell is `peer_bell`; `in` with this rank.
  MailboxLink(int peer, Mailbox& out, Bell& peer_bell, Mailbox& in, MailboxHooks hooks, MessageFaults faults);

  void post(const MessageHeader& header, const std::byte* data) override;
  uint64_t posted() const override { return posted_messages_; }
  uint64_t taken() override;
  const MessageHeader* front() override;
  std::span<const std::byte> readable() override;
  void take(size_t bytes) override;
  bool progress() override;
  void offer(const MessageHeader& header, std::byte* target) override;
  std::byte* offered(const MessageHeader& header) override;
  void post_written(const MessageHeader& header) override;
  bool is_written() override { return front() != nullptr && written_; }
  void take_written() override;

 private:
  struct Pending {
    MessageHeader header;
    const std::byte* data = nullptr;
    uint64_t handed_over = 0;          // bytes
    std::optional<SharedPlace> place;  // read there
    bool written = false;              // lies where the reader offered
  };
  // A message that is read in place: its data is free when so many fragments have been consumed.
  struct InPlace {
    uint64_t message = 0, fragments = 0;
  };
  bool hand_over(Pending& message);  // false while there is no room for all of it
  bool copy_fragment(const Pending& message, Mailbox::Slot& slot);
  void publish(Mailbox::Slot slot);
  void write_slot(const Mailbox::Slot& slot);
  void begin_fragment();

  const int peer_;
  Mailbox& out_;
  Bell& peer_bell_;
  Mailbox& in_;
  MailboxHooks hooks_;
  MessageFaults faults_;

  // Writing.
  uint64_t posted_messages_ = 0, handed_over_messages_ = 0;
  uint64_t posted_fragments_ = 0, numbered_fragments_ = 0;  // numbered: those left out too
  uint64_t seen_consumed_ = 0;
  std::deque<Pending> pending_;
  std::deque<InPlace> in_place_;
  uint64_t ring_head_ = 0, ring_tail_ = 0;            // bytes ever reserved and freed
  std::array<uint64_t, Mailbox::slots> ring_ends_{};  // ring_head_ after each fragment
  std::optional<Mailbox::Slot> held_back_;            // to be swapped with the next

  // Reading.
  uint64_t consumed_fragments_ = 0;
  const std::byte* fragment_ = nullptr;  // where reading has come to; null between fragments
  uint64_t fragment_left_ = 0, message_left_ = 0;
  MessageHeader header_;
  bool in_message_ = false, written_ = false;
};

}  // namespace athanor
