// The steps of one member of a group for one collective: plain data, so that one interpreter can run them, a
// checker prove them and a simulator price them.
//
// Made by algorithm.h; read by interpreter.h, plan_check.h. Thread safety: values.
//
// Meaning. Steps are carried out in their order. A send hands over the bytes of a region, which must not
// change until its reader has taken them; the steps that would change them name what they await. Messages
// between two members arrive in the order in which they were sent. An operand comes from a region of the
// member itself or is the next message from a peer. The outcome of a reduction may have readers: it is sent
// to them, and those that have offered the place where they want it (a receive that is `offered`) may find it
// written there already, block after block while it is being summed, so that every byte passes the memory
// once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/comm/collective.h"

namespace athanor {

enum class Place : uint8_t { input, output, scratch };

// `count` elements of type `dtype` beginning at byte `offset` of a place.
struct PlanRegion {
  Place place = Place::scratch;
  DType dtype = DType::fp32;
  int64_t offset = 0;
  int64_t count = 0;
  int64_t bytes() const { return count * static_cast<int64_t>(size_of(dtype)); }
};

enum class StepKind : uint8_t { send, receive, copy, reduce };
std::string_view name_of(StepKind kind);

// From `peer` if that is not negative (then only dtype and count of the region mean something).
struct PlanOperand {
  int32_t peer = -1;
  PlanRegion region;
};

// That the peer has taken messages 0 ... message of this plan.
struct Await {
  int32_t peer = 0;
  int64_t message = 0;
};

struct Step {
  StepKind kind = StepKind::copy;
  int32_t peer = -1;  // of a send
  PlanRegion region;  // what is sent, or where the outcome goes
  // Of receive and copy one, of reduce several, combined from the first to the last; converted to the
  // accumulator type before and to the region's type after.
  int32_t first_operand = 0, operands = 0;
  int32_t first_await = 0, awaits = 0;    // before the region is written
  int32_t first_reader = 0, readers = 0;  // of a reduction: who gets the outcome
  bool offered = false;  // of a receive: the sender may write there from the start of the plan
};

struct Plan {
  Algorithm algorithm = Algorithm::direct;
  CollectiveReduction reduction = CollectiveReduction::sum;
  DType accumulator = DType::fp32;
  int64_t scratch_bytes = 0;
  std::vector<Step> steps;
  std::vector<PlanOperand> operands;
  std::vector<Await> awaits;
  std::vector<int32_t> readers;
};

// One line a step.
std::string to_text(const Plan& plan);

}  // namespace athanor
