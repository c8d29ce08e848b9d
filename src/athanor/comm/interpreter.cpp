#include "athanor/comm/interpreter.h"

#include <algorithm>

#include "athanor/base/error.h"

namespace athanor {

void Interpreter::run(const PlanExecution& execution) {
  execution_ = &execution;
  const Plan& plan = *execution.plan;
  const size_t members = execution.ranks.size();
  posted_before_.assign(members, 0);
  sent_.assign(members, 0);
  received_.assign(members, 0);
  for (const Step& step : plan.steps) {
    for (int32_t i = 0; i < step.awaits; ++i) {
      const Await& await = plan.awaits[static_cast<size_t>(step.first_await + i)];
      wait_until_taken(await.peer, posted_before_[static_cast<size_t>(await.peer)] +
                                       static_cast<uint64_t>(await.message) + 1);
    }
    if (step.kind == StepKind::send) {
      send(step);
    } else {
      combine_arriving(step);
    }
  }
  for (size_t member = 0; member < members; ++member)
    if (sent_[member] > 0) wait_until_taken(static_cast<int>(member), posted_before_[member] + sent_[member]);
}

void Interpreter::send(const Step& step) {
  const auto member = static_cast<size_t>(step.peer);
  Link& link = transport_.link(execution_->ranks[member]);
  if (sent_[member] == 0) posted_before_[member] = link.posted();
  MessageHeader header = execution_->header;
  header.index = sent_[member]++;
  header.bytes = static_cast<uint64_t>(step.region.bytes());
  link.post(header, at(step.region));
}

void Interpreter::wait_until_taken(int member, uint64_t messages) {
  const int rank = execution_->ranks[static_cast<size_t>(member)];
  Link& link = transport_.link(rank);
  if (wait_until(transport_, execution_->deadline_ns, [&] { return link.taken() >= messages; }) ==
      WaitEnd::timed_out)
    (*execution_->on_timeout)(rank);
}

void Interpreter::combine_arriving(const Step& step) {
  const Plan& plan = *execution_->plan;
  const std::span<const Operand> operands(plan.operands.data() + step.first_operand,
                                          static_cast<size_t>(step.operands));
  sources_.clear();
  arrivals_.clear();
  for (const Operand& operand : operands) {
    Arrival arrival;
    if (operand.peer >= 0) {
      arrival.rank = execution_->ranks[static_cast<size_t>(operand.peer)];
      arrival.link = &transport_.link(arrival.rank);
      arrival.bytes = static_cast<uint64_t>(operand.region.bytes());
    }
    arrivals_.push_back(arrival);
    sources_.push_back({operand.peer < 0 ? at(operand.region) : nullptr, operand.region.dtype});
  }
  std::byte* target = at(step.region);
  // What has arrived from every peer, as it arrives; how it is cut changes no element's sum.
  for (int64_t left = step.region.count; left > 0;) {
    const bool first = left == step.region.count;
    int64_t count = left;
    for (size_t i = 0; i < operands.size(); ++i)
      if (arrivals_[i].link != nullptr)
        count = std::min(count, wait_for_elements(arrivals_[i], operands[i], left, first));
    for (size_t i = 0; i < operands.size(); ++i)
      if (arrivals_[i].link != nullptr) sources_[i].data = arrivals_[i].link->readable().data();
    combine(sources_, plan.reduction, plan.accumulator, step.region.dtype, target, count);
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto bytes = static_cast<size_t>(count) * size_of(operands[i].region.dtype);
      if (arrivals_[i].link != nullptr) {
        arrivals_[i].link->take(bytes);
      } else {
        sources_[i].data += bytes;
      }
    }
    target += static_cast<size_t>(count) * size_of(step.region.dtype);
    left -= count;
  }
}

// How many elements of a message can be read, at least one.
int64_t Interpreter::wait_for_elements(Arrival& arrival, const Operand& operand, int64_t left, bool first) {
  const size_t size = size_of(operand.region.dtype);
  Link& link = *arrival.link;
  const auto arrived = [&] { return link.front() != nullptr && link.readable().size() >= size; };
  if (wait_until(transport_, execution_->deadline_ns, arrived) == WaitEnd::timed_out)
    (*execution_->on_timeout)(arrival.rank);
  if (first) {
    MessageHeader expected = execution_->header;
    expected.index = received_[static_cast<size_t>(operand.peer)]++;
    expected.bytes = arrival.bytes;
    if (*link.front() != expected) (*execution_->on_mismatch)(arrival.rank, expected, *link.front());
  }
  return std::min(left, static_cast<int64_t>(link.readable().size() / size));
}

}  // namespace athanor
