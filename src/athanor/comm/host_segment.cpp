#include "athanor/comm/host_segment.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <span>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr uint64_t page = 4096;
constexpr uint64_t round_to_pages(uint64_t bytes) {
  return (bytes + page - 1) / page * page;
}
constexpr uint64_t head_bytes = round_to_pages(sizeof(SegmentHead));
constexpr uint64_t mailbox_bytes = round_to_pages(sizeof(Mailbox));

uint64_t mailbox_offset(int rank) {
  return head_bytes + static_cast<uint64_t>(rank) * mailbox_bytes;
}

}  // namespace

Secret::Proof segment_proof(const Secret& secret, int rank, int ranks, uint64_t generation) {
  const std::string text = fmt::format("{} of {} in {}", rank, ranks, generation);
  return secret.prove({bytes_of("athanor segment 1"), bytes_of(text)});
}

OwnSegment::OwnSegment(const HostTransportOptions& options)
    : file_(create_memory_file("athanor-segment", mailbox_offset(options.ranks))),
      mapping_(file_, 0, mailbox_offset(options.ranks)) {
  new (mapping_.data()) SegmentHead;  // the mailboxes begin as zeros
  head().proof = segment_proof(options.secret, options.rank, options.ranks, options.generation);
}

Mailbox& OwnSegment::mailbox_from(int rank) const {
  return *reinterpret_cast<Mailbox*>(mapping_.data() + mailbox_offset(rank));
}

PeerSegment::PeerSegment(const HostTransportOptions& options, const HostAddress& peer)
    // First the process, then its memory: if the number has gone to another process, the memory is not ours.
    : process_(static_cast<int>(syscall(SYS_pidfd_open, peer.process, 0))) {
  const auto gone = [&](const std::string& why) {
    throw Error(ErrorKind::restart_worker,
                fmt::format("rank {} (process {}) {}", peer.rank, peer.process, why));
  };
  if (!process_.is_open()) gone("has ended");
  const auto file = open_memory_file(peer.process, peer.segment);
  if (!file) gone("has ended or cannot be read");
  if (size_of_file(*file) != mailbox_offset(options.ranks)) gone("is not a rank of this job");
  head_ = Mapping(*file, 0, head_bytes);
  if (!equal_proofs(head().proof,
                    segment_proof(options.secret, peer.rank, options.ranks, options.generation)))
    gone("is not a rank of this job and generation");
  mailbox_ = Mapping(*file, mailbox_offset(options.rank), mailbox_bytes);
}

}  // namespace athanor
