// Messages to and from a rank of another host over TCP.
//
// Called by tcp_network.h, which makes connections, and by the interpreter through Link. Thread safety: the
// functions of Link belong to the thread of the rank's collectives, those of the network to its loop;
// send_control and has_channel may be called from any.
//
// There are up to two connections to a peer, one made by each side. Messages travel on the one that this rank
// made; control frames on whichever there is.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "athanor/comm/event_loop.h"
#include "athanor/comm/transport.h"
#include "athanor/comm/wire.h"

namespace athanor {

class TcpLink final : public Link {
 public:
  enum class Side : uint8_t {
    outgoing,
    incoming
  };  // which of the two made the connection: this rank, the peer

  // What the network does for a link; called in the loop's thread.
  struct Hooks {
    std::function<void(int peer, const std::string& what)> fail;
    std::function<void(int peer, FrameType type, const std::string& payload)> control;
  };
  TcpLink(int peer, EventLoop& loop, Bell& bell, Hooks hooks);
  ~TcpLink() override;

  void post(const MessageHeader& header, const std::byte* data) override;
  uint64_t posted() const override { return posted_; }
  uint64_t taken() override;
  const MessageHeader* front() override;
  std::span<const std::byte> readable() override;
  void take(size_t bytes) override;
  bool progress() override { return false; }  // the loop does it

  int peer() const { return peer_; }

  // Of the network, in the loop's thread.
  // `failure`, if not empty, is told to the peer before anything else.
  void add_channel(Side side, Descriptor socket, const std::string& failure);
  void close_channels();
  // This rank ends: what has been posted and queued is sent, and then a goodbye on every connection, those
  // too that are still to come.
  void shut_down();
  bool has_unsent();              // of what has been posted and queued
  void forgive(int64_t lost_ns);  // so much of the silence counts for nothing
  int64_t last_heard_ns();        // when anything last came; now, while this rank does not read
  bool peer_has_left() const { return peer_has_left_; }
  // Fails, and is true, if one of two connections ended before `time_ns` and no last word has come since.
  bool ended_before(int64_t time_ns);

  // Sends nothing more of what was posted, and does not look at its memory again. For a rank that gives up:
  // from any thread.
  void drop_messages();

  // Queues a control frame; false if there is no channel yet.
  bool send_control(FrameType type, std::string payload);
  bool has_channel();

 private:
  static constexpr uint64_t ring_bytes = 2 << 20;

  struct OutgoingFrame {
    FrameHeader header;
    const std::byte* payload = nullptr;
    size_t payload_bytes = 0, sent = 0;  // sent: of header and payload
    std::string owned;
    bool ends_message = false;
  };
  struct Channel {
    Descriptor socket;
    std::optional<OutgoingFrame> frame;  // on its way
    uint64_t frames_sent = 0;
    bool wants_to_write = false, paused = false, read_ended = false;
    bool said_goodbye = false, heard_goodbye = false;
    // The frame that arrives.
    FrameHeader header{};
    size_t header_have = 0, payload_have = 0;
    std::optional<Frame> arriving;
    uint64_t frames_received = 0;
    std::string control;
    uint64_t ring_offset = 0, ring_end = 0;  // of data, where they go
  };
  struct Message {
    MessageHeader header;
    const std::byte* data = nullptr;
    uint64_t sent = 0;
  };
  struct Fragment {
    MessageHeader header;
    uint64_t offset = 0, bytes = 0, ring_end = 0;
  };
  Channel& channel(Side side) { return channels_[static_cast<size_t>(side)]; }

  // All with mutex_ held.
  bool next_frame(Side side);
  void write(Side side);
  void update_events(Channel& channel);
  bool reserve_in_ring(Channel& channel, uint64_t bytes);

  void on_event(Side side, uint32_t events);
  enum class ReadEnd : uint8_t { would_block, paused, ended, failed };
  ReadEnd read(Side side, std::string& problem);
  ReadEnd read_some(Side side, std::byte* to, size_t wanted, size_t& have, std::string& problem);
  std::string finish_frame(Channel& channel);
  void begin_fragment();

  const int peer_;
  EventLoop& loop_;
  Bell& bell_;
  const Hooks hooks_;

  std::mutex mutex_;
  std::array<Channel, 2> channels_;
  std::deque<Message> messages_;                            // not wholly sent
  std::deque<std::pair<FrameType, std::string>> controls_;  // not begun
  uint64_t posted_ = 0;
  std::atomic<uint64_t> taken_{0};
  int64_t heard_ns_ = 0;
  bool shuts_down_ = false;
  std::atomic<bool> peer_has_left_{false};
  int64_t ended_ns_ = 0;  // when the first of two connections ended; of the loop's thread, like what follows
  std::string end_problem_;

  // The ring of arrived data, and what lies in it.
  std::vector<std::byte> ring_;
  uint64_t ring_head_ = 0, ring_tail_ = 0;  // bytes ever reserved and freed
  std::deque<Fragment> fragments_;
  std::atomic<uint64_t> arrived_{0};  // fragments ever

  // Of the reader.
  uint64_t begun_ = 0;  // fragments ever
  std::optional<Fragment> fragment_;
  uint64_t message_left_ = 0;
  MessageHeader header_;
  bool in_message_ = false;
};

}  // namespace athanor
