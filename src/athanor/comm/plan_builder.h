// Puts the plan of one member together: finds out what each write must await, leaves out what is empty.
//
// Called by the algorithms only. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "athanor/comm/plan.h"

namespace athanor {

// Elements [begin, begin + count).
struct ElementRange {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
};
using Ranges = std::vector<ElementRange>;
// Where the elements of a range lie; the range never reaches over the end of a block.
using Locate = std::function<PlanRegion(ElementRange)>;

int64_t count_of(const Ranges& ranges);
// The ranges one after another, cut so that no piece has more than `most` elements.
Ranges pieces_of(const Ranges& ranges, int64_t most);

class PlanBuilder {
 public:
  PlanBuilder(const CollectiveSpec& spec, Algorithm algorithm, int member);

  PlanRegion input(ElementRange range) const {
    return {Place::input, spec_.dtype, bytes(range.begin), range.count};
  }
  PlanRegion output(ElementRange range) const {
    return {Place::output, spec_.dtype, bytes(range.begin), range.count};
  }
  PlanRegion scratch(DType dtype, int64_t count);
  // `count` elements from element `begin` of `whole` on.
  static PlanRegion part(const PlanRegion& whole, int64_t begin, int64_t count);

  static PlanOperand local(const PlanRegion& region) { return {-1, region}; }
  static PlanOperand from(int peer, DType dtype, int64_t count) {
    return {peer, {Place::scratch, dtype, 0, count}};
  }

  void send(int peer, const PlanRegion& region);
  void receive(int peer, DType dtype, const PlanRegion& target);
  void copy(const PlanRegion& source, const PlanRegion& target);
  void reduce(const std::vector<PlanOperand>& operands, const PlanRegion& target,
              const std::vector<int32_t>& readers = {});
  // Nothing between the start of the plan and this may touch `target` but a send to the same peer, which
  // takes that message before it writes.
  void receive_offered(int peer, DType dtype, const PlanRegion& target);

  const CollectiveSpec& spec() const { return spec_; }
  DType accumulator() const { return plan_.accumulator; }
  Plan finish() { return std::move(plan_); }

 private:
  struct Outstanding {
    int space;
    int64_t begin, end;
    int32_t peer;
    int64_t message;
  };
  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(size_of(spec_.dtype)); }
  // Where a region lies when input and output share storage as the operation allows.
  Outstanding extent(const PlanRegion& region) const;
  void await_readers(Step& step);
  void note_sent(int peer, const PlanRegion& region);
  void add(StepKind kind, const std::vector<PlanOperand>& operands, const PlanRegion& target);

  const CollectiveSpec& spec_;
  int64_t input_base_ = 0, output_base_ = 0;  // bytes
  bool shares_storage_ = true;
  Plan plan_;
  std::vector<int64_t> sent_;  // messages to each peer so far
  std::vector<Outstanding> outstanding_;
};

}  // namespace athanor
