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
//   Message: what a send hands over; with `Region region`
//   Message send(int member, const Region&)
//   void combine(int member, const Plan&, const Step&, std::span<const Message*> received)
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
    int64_t taken = 0;
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
      channel(member, static_cast<size_t>(step.peer))
          .waiting.push_back(machine_.send(static_cast<int>(member), step.region));
    } else if (!try_combine(member, plan, step)) {
      return false;
    }
    ++next_[member];
    return true;
  }

  bool try_combine(size_t member, const Plan& plan, const Step& step) {
    received_.clear();
    for (int32_t i = 0; i < step.operands; ++i) {
      const Operand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
      received_.push_back(nullptr);
      if (operand.peer < 0) continue;
      Channel& from = channel(static_cast<size_t>(operand.peer), member);
      if (from.waiting.empty()) return false;
      const Region& sent = from.waiting.front().region;
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
      const Operand& operand = plan.operands[static_cast<size_t>(step.first_operand + i)];
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
