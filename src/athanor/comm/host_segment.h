// The shared memory of one rank: its board, its table of regions, a mailbox for each peer.
//
// Called by host_transport.cpp. Thread safety: what lies in it has its own rules.
// Layout: SegmentHead, then at a multiple of the page size the mailboxes, by rank of the sender. The file is
// sparse: what nobody uses takes no memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "athanor/comm/host_transport.h"
#include "athanor/comm/mailbox.h"
#include "athanor/comm/rank_board.h"
#include "athanor/comm/shared_memory.h"

namespace athanor {

struct SegmentHead {
  Secret::Proof proof{};  // that it belongs to this rank of this job and generation
  RankBoard board;
  RegionTable regions;
};

Secret::Proof segment_proof(const Secret& secret, int rank, int ranks, uint64_t generation);

class OwnSegment {
 public:
  explicit OwnSegment(const HostTransportOptions& options);
  SegmentHead& head() const { return *reinterpret_cast<SegmentHead*>(mapping_.data()); }
  Mailbox& mailbox_from(int rank) const;
  int descriptor() const { return file_.number(); }

 private:
  Descriptor file_;
  Mapping mapping_;
};

// A peer's segment: its head and the mailbox that this rank writes to.
class PeerSegment {
 public:
  // Throws a restart_worker error if the process is gone or its memory is not what the address says.
  PeerSegment(const HostTransportOptions& options, const HostAddress& peer);
  SegmentHead& head() const { return *reinterpret_cast<SegmentHead*>(head_.data()); }
  Mailbox& mailbox() const { return *reinterpret_cast<Mailbox*>(mailbox_.data()); }
  int process_descriptor() const { return process_.number(); }  // readable when the process has ended

 private:
  Descriptor process_;
  Mapping head_, mailbox_;
};

}  // namespace athanor
