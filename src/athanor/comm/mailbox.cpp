#include "athanor/comm/mailbox.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr uint64_t line = 64;

uint64_t round_up(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

MailboxLink::MailboxLink(int peer, Mailbox& out, Bell& peer_bell, Mailbox& in, MailboxHooks hooks,
                         MessageFaults faults)
    : peer_(peer), out_(out), peer_bell_(peer_bell), in_(in), hooks_(std::move(hooks)), faults_(faults) {}

void MailboxLink::post(const MessageHeader& header, const std::byte* data) {
  ATHANOR_ASSERT(header.bytes > 0, "an empty message");
  if (faults_.delay_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(faults_.delay_ns));
  ++posted_messages_;
  Pending message{header, data, 0, std::nullopt, false};
  if ((header.bytes >= copy_below || faults_.zero_buffering) && !faults_.always_copy)
    message.place = hooks_.share(data, header.bytes);
  if (!pending_.empty() || !hand_over(message)) pending_.push_back(message);
}

bool MailboxLink::progress() {
  while (!pending_.empty() && hand_over(pending_.front())) pending_.pop_front();
  return !pending_.empty();
}

bool MailboxLink::hand_over(Pending& message) {
  while (message.handed_over < message.header.bytes) {
    const uint64_t consumed = out_.consumed.load(std::memory_order_acquire);
    if (consumed > posted_fragments_) throw Error(ErrorKind::restart_worker, "a mailbox is damaged");
    if (consumed > seen_consumed_) ring_tail_ = ring_ends_[(consumed - 1) % Mailbox::slots];
    seen_consumed_ = consumed;
    if (posted_fragments_ - consumed == Mailbox::slots) return false;
    Mailbox::Slot slot;
    slot.header = message.header;
    if (message.written) {
      slot.bytes = message.header.bytes;
      slot.region = Mailbox::where_offered;
    } else if (message.place) {
      slot.bytes = message.header.bytes;
      slot.region = message.place->region;
      slot.offset = message.place->offset;
    } else if (!copy_fragment(message, slot)) {
      return false;
    }
    if (faults_.checksums && !message.written)
      slot.checksum = crc32c({message.data + message.handed_over, slot.bytes});
    message.handed_over += slot.bytes;
    publish(slot);
  }
  if (message.place) in_place_.push_back({handed_over_messages_, posted_fragments_});
  ++handed_over_messages_;
  return true;
}

// Copies what of the message comes next into the ring; false when the ring is full.
bool MailboxLink::copy_fragment(const Pending& message, Mailbox::Slot& slot) {
  slot.bytes = std::min(message.header.bytes - message.handed_over, largest_copy);
  const uint64_t needed = round_up(slot.bytes, line);
  // An empty ring begins at its start again: the same few lines stay in the cache.
  if (seen_consumed_ == posted_fragments_)
    ring_head_ = ring_tail_ = round_up(ring_head_, Mailbox::ring_bytes);
  uint64_t begin = ring_head_;
  if (begin % Mailbox::ring_bytes + needed > Mailbox::ring_bytes)
    begin = round_up(begin, Mailbox::ring_bytes);
  if (begin + needed - ring_tail_ > Mailbox::ring_bytes) return false;
  slot.offset = begin % Mailbox::ring_bytes;
  std::memcpy(out_.ring.data() + slot.offset, message.data + message.handed_over, slot.bytes);
  ring_head_ = begin + needed;
  return true;
}

void MailboxLink::publish(Mailbox::Slot slot) {
  const auto number = static_cast<int64_t>(numbered_fragments_++);
  if (number == faults_.drop) return;
  if (number == faults_.corrupt) {
    ATHANOR_ASSERT(slot.region == Mailbox::in_ring, "only copies can be damaged");
    out_.ring[slot.offset + slot.bytes / 2] ^= std::byte{4};
  }
  if (number == faults_.swap) {
    held_back_ = slot;
    return;
  }
  write_slot(slot);
  if (held_back_) {
    write_slot(*held_back_);
    held_back_.reset();
  }
}

void MailboxLink::write_slot(const Mailbox::Slot& slot) {
  const uint64_t place = posted_fragments_ % Mailbox::slots;
  out_.slot[place] = slot;
  ring_ends_[place] = ring_head_;
  out_.posted.store(++posted_fragments_, std::memory_order_seq_cst);
  peer_bell_.ring();
}

uint64_t MailboxLink::taken() {
  if (in_place_.empty()) return handed_over_messages_;
  const uint64_t consumed = out_.consumed.load(std::memory_order_seq_cst);
  while (!in_place_.empty() && in_place_.front().fragments <= consumed) in_place_.pop_front();
  return in_place_.empty() ? handed_over_messages_ : in_place_.front().message;
}

const MessageHeader* MailboxLink::front() {
  if (!written_ && (!in_message_ || fragment_left_ == 0)) begin_fragment();
  return in_message_ ? &header_ : nullptr;
}

std::span<const std::byte> MailboxLink::readable() {
  if (!written_ && fragment_left_ == 0) begin_fragment();
  return {fragment_, fragment_left_};
}

// Looks at the next fragment if there is one; trusts nothing in it.
void MailboxLink::begin_fragment() {
  if (in_.posted.load(std::memory_order_seq_cst) == consumed_fragments_) return;
  const Mailbox::Slot slot = in_.slot[consumed_fragments_ % Mailbox::slots];
  const bool continues = in_message_;
  if (!continues) {
    header_ = slot.header;
    message_left_ = header_.bytes;
  }
  const bool in_one_piece = !continues && slot.bytes == header_.bytes;
  if (slot.header != header_ || slot.bytes == 0 || slot.bytes > message_left_ ||
      (slot.region == Mailbox::where_offered && !in_one_piece))
    throw Error(
        ErrorKind::restart_worker,
        fmt::format("messages from rank {} are out of order: {} bytes of message {} of collective {} where "
                    "{} bytes of message {} of collective {} were due",
                    peer_, slot.bytes, slot.header.index, slot.header.sequence, message_left_, header_.index,
                    header_.sequence));
  in_message_ = true;
  written_ = slot.region == Mailbox::where_offered;
  if (written_) return;
  if (slot.region == Mailbox::in_ring) {
    if (slot.offset > Mailbox::ring_bytes || slot.bytes > Mailbox::ring_bytes - slot.offset)
      throw Error(ErrorKind::restart_worker, fmt::format("the mailbox of rank {} is damaged", peer_));
    fragment_ = in_.ring.data() + slot.offset;
  } else {
    fragment_ = hooks_.resolve({slot.region, slot.offset}, slot.bytes);
  }
  if (faults_.checksums && crc32c({fragment_, slot.bytes}) != slot.checksum)
    throw Error(ErrorKind::restart_worker,
                fmt::format("a message from rank {} was damaged on its way", peer_));
  fragment_left_ = slot.bytes;
}

void MailboxLink::offer(const MessageHeader& header, std::byte* target) {
  if (header.bytes < offer_from || faults_.always_copy) return;
  const std::optional<SharedPlace> place = hooks_.share(target, header.bytes);
  if (!place) return;
  const uint64_t number = in_.offered.load(std::memory_order_relaxed);
  in_.offer[number % Mailbox::offers] = {header, place->offset, place->region};
  in_.offered.store(number + 1, std::memory_order_release);
}

std::byte* MailboxLink::offered(const MessageHeader& header) {
  if (header.bytes < offer_from || faults_.always_copy) return nullptr;
  const uint64_t last = out_.offered.load(std::memory_order_acquire);
  for (uint64_t number = last; number > 0 && number + Mailbox::offers > last; --number) {
    const Mailbox::Offer& each = out_.offer[(number - 1) % Mailbox::offers];
    if (each.header == header)
      return const_cast<std::byte*>(hooks_.resolve({each.region, each.offset}, header.bytes));
  }
  return nullptr;
}

void MailboxLink::post_written(const MessageHeader& header) {
  ++posted_messages_;
  Pending message{header, nullptr, 0, std::nullopt, true};
  if (!pending_.empty() || !hand_over(message)) pending_.push_back(message);
}

void MailboxLink::take_written() {
  ATHANOR_ASSERT(written_, "no written message");
  written_ = in_message_ = false;
  message_left_ = 0;
  in_.consumed.store(++consumed_fragments_, std::memory_order_seq_cst);
  peer_bell_.ring();
}

void MailboxLink::take(size_t bytes) {
  ATHANOR_ASSERT(bytes > 0 && bytes <= fragment_left_, "{} of {} bytes", bytes, fragment_left_);
  fragment_ += bytes;
  fragment_left_ -= bytes;
  message_left_ -= bytes;
  if (message_left_ == 0) in_message_ = false;
  if (fragment_left_ > 0) return;
  in_.consumed.store(++consumed_fragments_, std::memory_order_seq_cst);
  peer_bell_.ring();
}

}  // namespace athanor
