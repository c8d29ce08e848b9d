// A transport that counts what its rank does with its links, and strikes at one of these moments: for tests
// of a rank that is lost in the middle of a collective.
//
// Thread safety: as of the transport that it stands in front of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "athanor/comm/transport.h"

namespace athanor {

// A moment is a step's turning to a peer, or the end of something done with the peer's link.
struct Moments {
  int64_t passed = 0;
  int64_t strike_at = -1;  // the number of the moment; negative: never
  std::function<void()> strike = [] {};

  void pass() {
    if (passed++ == strike_at) strike();
  }
};

class InterruptedLink final : public Link {
 public:
  InterruptedLink(Link& link, Moments& moments) : link_(link), moments_(moments) {}

  void post(const MessageHeader& header, const std::byte* data) override {
    link_.post(header, data);
    moments_.pass();
  }
  uint64_t posted() const override { return link_.posted(); }
  uint64_t taken() override { return link_.taken(); }
  const MessageHeader* front() override { return link_.front(); }
  std::span<const std::byte> readable() override { return link_.readable(); }
  void take(size_t bytes) override {
    link_.take(bytes);
    moments_.pass();
  }
  void offer(const MessageHeader& header, std::byte* target) override {
    link_.offer(header, target);
    moments_.pass();
  }
  std::byte* offered(const MessageHeader& header) override { return link_.offered(header); }
  void post_written(const MessageHeader& header) override {
    link_.post_written(header);
    moments_.pass();
  }
  bool is_written() override { return link_.is_written(); }
  void take_written() override {
    link_.take_written();
    moments_.pass();
  }
  bool progress() override { return link_.progress(); }

 private:
  Link& link_;
  Moments& moments_;
};

class InterruptedTransport final : public Transport {
 public:
  // `moments` must outlive it.
  InterruptedTransport(std::unique_ptr<Transport> transport, Moments& moments)
      : transport_(std::move(transport)),
        moments_(moments),
        links_(static_cast<size_t>(transport_->ranks())) {}

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  Link& link(int peer) override {
    moments_.pass();
    auto& link = links_[static_cast<size_t>(peer)];
    if (!link) link = std::make_unique<InterruptedLink>(transport_->link(peer), moments_);
    return *link;
  }
  RankBoard& board() override { return transport_->board(); }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return transport_->allocate(bytes); }
  void progress() override { transport_->progress(); }
  void check() override { transport_->check(); }
  void abort(const std::string& reason) override { transport_->abort(reason); }
  std::vector<RankAnswer> ask(std::span<const int> of, int64_t until_ns) override {
    return transport_->ask(of, until_ns);
  }
  int64_t spin_ns() const override { return transport_->spin_ns(); }

 private:
  const std::unique_ptr<Transport> transport_;
  Moments& moments_;
  std::vector<std::unique_ptr<InterruptedLink>> links_;
};

}  // namespace athanor
