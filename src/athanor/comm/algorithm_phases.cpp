#include "athanor/comm/algorithm_phases.h"

#include <algorithm>
#include <bit>

namespace athanor {
namespace {

int wrap(int position, int size) {
  return (position % size + size) % size;
}

void copy_block(PlanBuilder& builder, const Ranges& block, const Locate& from, const Locate& to) {
  for (const ElementRange& range : block) {
    const PlanRegion source = from(range), target = to(range);
    if (source.place == target.place && source.offset == target.offset) continue;
    builder.copy(source, target);
  }
}

void send_block(PlanBuilder& builder, int peer, const Ranges& block, const Locate& where) {
  for (const ElementRange& range : block) builder.send(peer, where(range));
}

void receive_block(PlanBuilder& builder, int peer, const Ranges& block, const Locate& where) {
  for (const ElementRange& range : block) {
    const PlanRegion target = where(range);
    builder.receive(peer, target.dtype, target);
  }
}

// Sums the own block of all positions, in their order.
void reduce_own_block(PlanBuilder& builder, const Phase& phase, const Locate& source, const Locate& sink,
                      const std::vector<int32_t>& readers) {
  const int n = phase.size(), me = phase.position;
  for (int k = 1; k < n; ++k) {
    const int to = wrap(me + k, n);
    send_block(builder, phase.member(to), phase.block(to), source);
  }
  std::vector<PlanOperand> operands(static_cast<size_t>(n));
  for (const ElementRange& range : phase.block(me)) {
    const PlanRegion own = source(range);
    for (int at = 0; at < n; ++at)
      operands[static_cast<size_t>(at)] =
          at == me ? PlanBuilder::local(own) : PlanBuilder::from(phase.member(at), own.dtype, range.count);
    builder.reduce(operands, sink(range), readers);
  }
}

void direct_all_gather(PlanBuilder& builder, const Phase& phase, const Locate& own, const Locate& result) {
  const int n = phase.size(), me = phase.position;
  for (int k = 1; k < n; ++k) send_block(builder, phase.member(wrap(me + k, n)), phase.block(me), own);
  copy_block(builder, phase.block(me), own, result);
  // The other way round than they were sent: the nearest was sent first.
  for (int k = 1; k < n; ++k) {
    const int of = wrap(me - k, n);
    receive_block(builder, phase.member(of), phase.block(of), result);
  }
}

// Block b starts at position b + 1 and goes around to b; each position adds its own on the way. Source: the
// ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
void ring_reduce_scatter(PlanBuilder& builder, const Phase& phase, const Locate& source, const Locate& sink) {
  const int n = phase.size(), me = phase.position;
  const int next = phase.member(wrap(me + 1, n)), previous = phase.member(wrap(me - 1, n));
  int64_t largest = 0;
  for (const Ranges& block : phase.blocks) largest = std::max(largest, count_of(block));
  const int slots = std::min(n - 2, 2);
  const PlanRegion slot = builder.scratch(builder.accumulator(), largest * slots);
  for (const ElementRange& piece : pieces_of(phase.block(wrap(me - 1, n)), phase.piece))
    builder.send(next, source(piece));
  for (int step = 0; step < n - 1; ++step) {
    const bool last = step == n - 2;
    int64_t used = last ? 0 : largest * (step % slots);
    for (const ElementRange& piece : pieces_of(phase.block(wrap(me - 2 - step, n)), phase.piece)) {
      const PlanRegion own = source(piece);
      const PlanRegion target = last ? sink(piece) : PlanBuilder::part(slot, used, piece.count);
      const DType arriving = step == 0 ? own.dtype : builder.accumulator();
      builder.reduce({PlanBuilder::from(previous, arriving, piece.count), PlanBuilder::local(own)}, target);
      if (!last) builder.send(next, target);
      used += piece.count;
    }
  }
}

void ring_all_gather(PlanBuilder& builder, const Phase& phase, const Locate& own, const Locate& result) {
  const int n = phase.size(), me = phase.position;
  const int next = phase.member(wrap(me + 1, n)), previous = phase.member(wrap(me - 1, n));
  for (const ElementRange& piece : pieces_of(phase.block(me), phase.piece)) builder.send(next, own(piece));
  copy_block(builder, phase.block(me), own, result);
  for (int step = 0; step < n - 1; ++step) {
    for (const ElementRange& piece : pieces_of(phase.block(wrap(me - 1 - step, n)), phase.piece)) {
      const PlanRegion target = result(piece);
      builder.receive(previous, target.dtype, target);
      if (step < n - 2) builder.send(next, target);
    }
  }
}

// Positions folded onto a power of two: of the first 2r positions, each even one hands its part to the odd
// one after it, which stands for both.
struct Folding {
  int virtual_count = 1, pairs = 0, size = 0;
  explicit Folding(int n)
      : virtual_count(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))), size(n) {
    pairs = n - virtual_count;
  }
  bool is_idle(int position) const { return position < 2 * pairs && position % 2 == 0; }
  bool is_pair(int number) const { return number < pairs; }
  int number_of(int position) const { return position < 2 * pairs ? position / 2 : position - pairs; }
  int position_of(int number) const { return number < pairs ? 2 * number + 1 : number + pairs; }
  Ranges blocks(const Phase& phase, int first, int count) const {
    Ranges all;
    for (int number = first; number < first + count; ++number) {
      const int position = position_of(number);
      if (is_pair(number))
        all.insert(all.end(), phase.block(position - 1).begin(), phase.block(position - 1).end());
      all.insert(all.end(), phase.block(position).begin(), phase.block(position).end());
    }
    return all;
  }
};

// Where the elements of all blocks lie in one scratch, in the blocks' order.
Locate in_scratch(PlanBuilder& builder, const Phase& phase) {
  Ranges all;
  for (const Ranges& block : phase.blocks) all.insert(all.end(), block.begin(), block.end());
  const PlanRegion whole = builder.scratch(builder.accumulator(), count_of(all));
  return [whole, all](ElementRange range) {
    int64_t before = 0;
    for (const ElementRange& block : all) {
      if (range.begin >= block.begin && range.end() <= block.end() && block.count > 0)
        return PlanBuilder::part(whole, before + range.begin - block.begin, range.count);
      before += block.count;
    }
    return PlanBuilder::part(whole, 0, 0);
  };
}

// Source: recursive vector halving with distance halving, Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", 2005.
void halving_reduce_scatter(PlanBuilder& builder, const Phase& phase, const Locate& source,
                            const Locate& sink) {
  const Folding folding(phase.size());
  const int me = phase.position;
  const DType partial = builder.accumulator();
  if (folding.is_idle(me)) {
    const int partner = phase.member(me + 1);
    for (const Ranges& block : phase.blocks) send_block(builder, partner, block, source);
    for (const ElementRange& range : phase.block(me)) builder.receive(partner, partial, sink(range));
    return;
  }
  const Locate working = in_scratch(builder, phase);
  const int number = folding.number_of(me);
  const bool pair = folding.is_pair(number);
  if (pair) {
    for (const Ranges& block : phase.blocks)
      for (const ElementRange& range : block) {
        const PlanRegion own = source(range);
        builder.reduce(
            {PlanBuilder::from(phase.member(me - 1), own.dtype, range.count), PlanBuilder::local(own)},
            working(range));
      }
  }
  int first = 0;
  bool partial_here = pair;
  for (int half = folding.virtual_count / 2; half >= 1; half /= 2) {
    const bool lower = number < first + half;
    const int peer_number = lower ? number + half : number - half;
    const int peer = phase.member(folding.position_of(peer_number));
    const bool first_round = half == folding.virtual_count / 2;
    const bool partial_there = !first_round || folding.is_pair(peer_number);
    send_block(builder, peer, folding.blocks(phase, lower ? first + half : first, half),
               partial_here ? working : source);
    if (!lower) first += half;
    for (const ElementRange& range : folding.blocks(phase, first, half)) {
      const PlanRegion own = partial_here ? working(range) : source(range);
      const PlanOperand theirs =
          PlanBuilder::from(peer, partial_there ? partial : source(range).dtype, range.count);
      const std::vector<PlanOperand> operands =
          lower ? std::vector{PlanBuilder::local(own), theirs} : std::vector{theirs, PlanBuilder::local(own)};
      builder.reduce(operands, working(range));
    }
    partial_here = true;
  }
  if (pair) send_block(builder, phase.member(me - 1), phase.block(me - 1), working);
  copy_block(builder, phase.block(me), working, sink);
}

void doubling_all_gather(PlanBuilder& builder, const Phase& phase, const Locate& own, const Locate& result) {
  const Folding folding(phase.size());
  const int me = phase.position;
  if (folding.is_idle(me)) {
    const int partner = phase.member(me + 1);
    send_block(builder, partner, phase.block(me), own);
    copy_block(builder, phase.block(me), own, result);
    for (int at = 0; at < phase.size(); ++at)
      if (at != me) receive_block(builder, partner, phase.block(at), result);
    return;
  }
  const int number = folding.number_of(me);
  copy_block(builder, phase.block(me), own, result);
  if (folding.is_pair(number)) receive_block(builder, phase.member(me - 1), phase.block(me - 1), result);
  for (int have = 1; have < folding.virtual_count; have *= 2) {
    const int mine = number / have * have, theirs = mine ^ have;
    const int peer = phase.member(folding.position_of(number ^ have));
    send_block(builder, peer, folding.blocks(phase, mine, have), result);
    receive_block(builder, peer, folding.blocks(phase, theirs, have), result);
  }
  if (folding.is_pair(number)) {
    for (int at = 0; at < phase.size(); ++at)
      if (at != me - 1) send_block(builder, phase.member(me - 1), phase.block(at), result);
  }
}

}  // namespace

void direct_all_reduce(PlanBuilder& builder, const Phase& phase, const Locate& source, const Locate& result) {
  const int n = phase.size(), me = phase.position;
  std::vector<int32_t> readers;
  for (int k = 1; k < n; ++k) readers.push_back(phase.member(wrap(me + k, n)));
  reduce_own_block(builder, phase, source, result, readers);
  for (int k = 1; k < n; ++k) {
    const int of = wrap(me - k, n);
    for (const ElementRange& range : phase.block(of)) {
      const PlanRegion target = result(range);
      builder.receive_offered(phase.member(of), target.dtype, target);
    }
  }
}

void reduce_scatter_phase(PlanBuilder& builder, Algorithm algorithm, const Phase& phase, const Locate& source,
                          const Locate& sink) {
  if (phase.size() == 1) {
    copy_block(builder, phase.block(0), source, sink);
  } else if (algorithm == Algorithm::ring) {
    ring_reduce_scatter(builder, phase, source, sink);
  } else if (algorithm == Algorithm::halving_doubling) {
    halving_reduce_scatter(builder, phase, source, sink);
  } else {
    reduce_own_block(builder, phase, source, sink, {});
  }
}

void all_gather_phase(PlanBuilder& builder, Algorithm algorithm, const Phase& phase, const Locate& own,
                      const Locate& result) {
  if (phase.size() == 1) {
    copy_block(builder, phase.block(0), own, result);
  } else if (algorithm == Algorithm::ring) {
    ring_all_gather(builder, phase, own, result);
  } else if (algorithm == Algorithm::halving_doubling) {
    doubling_all_gather(builder, phase, own, result);
  } else {
    direct_all_gather(builder, phase, own, result);
  }
}

}  // namespace athanor
