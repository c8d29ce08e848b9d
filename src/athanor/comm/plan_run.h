// Runs the plans of all members of a group in one thread, in lockstep: the order of their steps is proven,
// not their timing.
//
// Called by plan_check.h, with symbols in place of numbers, and by tests, with numbers. Thread safety: none.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "athanor/comm/plan.h"

namespace athanor {

// Machine has
//   Message: what a send hands over; with `PlanRegion region`
//   Message send(int member, const PlanRegion&)
//   void combine(int member, const Plan&, const Step&, std::span<const Message*> received)
//   bool overlap(int member, const PlanRegion&, const PlanRegion&)
// where `received` has one entry an operand, null for local ones. An exception ends the run.
template <class Machine>
class PlanRun {
 public:
  using Message = typename Machine::Message;

  PlanRun(std::span<const Plan> plans, Machine& machine)
      : plans_(plans), machine_(machine), members_(plans.size()), next_(plans.size()) {
    channels_.resize(members_ * members_);
  }

  // Empty if every member came to its end and every message was read, otherwise what went wrong.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t member = 0; member < members_; ++member)
        while (next_[member] < plans_[member].steps.size() && try_step(member)) moved = true;
      if (!fault_.empty()) return fault_;
    }
    for (size_t member = 0; member < members_; ++member)
      if (next_[member] < plans_[member].steps.size())
        return fmt::format("member {} waits for ever before step {} of {}", member, next_[member],
                           plans_[member].steps.size());
    for (size_t i = 0; i < channels_.size(); ++i)
      if (!channels_[i].waiting.empty())
        return fmt::format("member {} never reads message {} of member {}", i % members_, channels_[i].taken,
                           i / members_);
    return {};
  }

 private:
  struct Channel {
    std::deque<Message> waiting;
    int64_t taken = 0, written = 0;
  };
  Channel& channel(size_t from, size_t to) { return channels_[from * members_ + to]; }

  bool try_step(size_t member) {
    const Plan& plan = plans_[member];
    const Step& step = plan.steps[next_[member]];
    if (!fault_.empty()) return false;
    for (int32_t i = 0; i < step.awaits; ++i) {
      const Await& await = plan.awaits[static_cast<size_t>(step.first_await + i)];
      if (channel(member, static_cast<size_t>(await.peer)).taken <= await.message) return false;
    }
    if (step.kind == StepKind::send) {
      Channel& to = channel(member, static_cast<size_t>(step.peer));
      ++to.written;
      to.waiting.push_back(machine_.send(static_cast<int>(member), step.region));
    } else if (!try_combine(member, plan, step)) {
      return false;
    }
    for (int32_t i = 0; i < step.readers; ++i) {
      const auto reader = static_cast<size_t>(plan.readers[static_cast<size_t>(step.first_reader + i)]);
      check_offer(member, reader);
      channel(member, reader).waiting.push_back(machine_.send(static_cast<int>(member), step.region));
      ++channel(member, reader).written;
    }
    ++next_[member];
    return true;
  }

  // The next message to `reader` may be written where it offered: nothing of what the reader has yet to do
  // before may touch that place.
  void check_offer(size_t member, size_t reader) {
    const Plan& plan = plans_[reader];
    int64_t message = channel(member, reader).taken;
    for (size_t at = next_[reader]; at < plan.steps.size(); ++at) {
      const Step& receive = plan.steps[at];
      bool of_member = false;
      for (int32_t i = 0; i < receive.operands; ++i)
        of_member = of_member || plan.operands[static_cast<size_t>(receive.first_operand + i)].peer ==
                                     static_cast<int>(member);
      if (!of_member || message++ < channel(member, reader).written) continue;
      if (!receive.offered) return;
      for (int32_t i = 0; i < receive.awaits; ++i) {
        const Await& await = plan.awaits[static_cast<size_t>(receive.first_await + i)];
        if (channel(reader, static_cast<size_t>(await.peer)).taken <= await.message)
          fault_ = fmt::format("member {} offers what member {} may still read", reader, await.peer);
      }
      for (size_t before = next_[reader]; before < at; ++before)
        if (touches(reader, plan, plan.steps[before], receive.region))
          fault_ = fmt::format("member {} offers what it uses in step {}", reader, before);
      return;
    }
  }

  bool touches(size_t member, const Plan& plan, const Step& step, const PlanRegion& region) {
    if (machine_.overlap(static_cast<int>(member), step.region, region)) return true;
    for (int32_t i = 0; i < step.operands; ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
      if (operand.peer < 0 && machine_.overlap(static_cast<int>(member), operand.region, region)) return true;
    }
    return false;
  }

  bool try_combine(size_t member, const Plan& plan, const Step& step) {
    received_.clear();
    for (int32_t i = 0; i < step.operands; ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
      received_.push_back(nullptr);
      if (operand.peer < 0) continue;
      Channel& from = channel(static_cast<size_t>(operand.peer), member);
      if (from.waiting.empty()) return false;
      const PlanRegion& sent = from.waiting.front().region;
      if (sent.count != operand.region.count || sent.dtype != operand.region.dtype) {
        fault_ = fmt::format("member {} expects {} {} from member {}, which sent {} {}", member,
                             operand.region.count, name_of(operand.region.dtype), operand.peer, sent.count,
                             name_of(sent.dtype));
        return false;
      }
      received_.back() = &from.waiting.front();
    }
    machine_.combine(static_cast<int>(member), plan, step, received_);
    for (int32_t i = 0; i < step.operands; ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
      if (operand.peer < 0) continue;
      Channel& from = channel(static_cast<size_t>(operand.peer), member);
      from.waiting.pop_front();
      ++from.taken;
    }
    return true;
  }

  std::span<const Plan> plans_;
  Machine& machine_;
  size_t members_;
  std::vector<size_t> next_;
  std::vector<Channel> channels_;
  std::vector<const Message*> received_;
  std::string fault_;
};

}  // namespace athanor
