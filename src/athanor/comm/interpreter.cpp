#include "athanor/comm/interpreter.h"

#include <algorithm>
#include <cstring>

#include "athanor/base/error.h"
#include "athanor/comm/transport_wait.h"

namespace athanor {

// Waits for what a rank does.
template <class Ready>
void Interpreter::await(int rank, const Ready& ready) {
  if (ready()) return;
  transport_.board().set_awaited(rank);
  if (wait_until(transport_, deadline_ns_, ready) == WaitEnd::timed_out) (*execution_->on_timeout)(rank);
  transport_.board().set_awaited(-1);
}

void Interpreter::run(const PlanExecution& execution) {
  execution_ = &execution;
  deadline_ns_ = execution.deadline_ns;
  const Plan& plan = *execution.plan;
  const size_t members = execution.ranks.size();
  posted_before_.assign(members, 0);
  sent_.assign(members, 0);
  received_.assign(members, 0);
  offer_places();
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

// Of the next message to a member.
MessageHeader Interpreter::next_header(int member, int64_t bytes) {
  const auto index = static_cast<size_t>(member);
  if (sent_[index] == 0) posted_before_[index] = transport_.link(execution_->ranks[index]).posted();
  MessageHeader header = execution_->header;
  header.index = sent_[index]++;
  header.bytes = static_cast<uint64_t>(bytes);
  return header;
}

void Interpreter::send(const Step& step) {
  const MessageHeader header = next_header(step.peer, step.region.bytes());
  transport_.link(execution_->ranks[static_cast<size_t>(step.peer)]).post(header, at(step.region));
}

// Before anything is sent: who has a message of this run from here may count on the offers.
void Interpreter::offer_places() {
  const Plan& plan = *execution_->plan;
  if (std::none_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.offered; }))
    return;
  std::vector<uint32_t>& index = received_;  // counted here first
  for (const Step& step : plan.steps)
    for (int32_t i = 0; i < step.operands; ++i) {
      const int32_t peer = plan.operands[static_cast<size_t>(step.first_operand + i)].peer;
      if (peer < 0) continue;
      MessageHeader header = execution_->header;
      header.index = index[static_cast<size_t>(peer)]++;
      header.bytes = static_cast<uint64_t>(step.region.bytes());
      if (step.offered)
        transport_.link(execution_->ranks[static_cast<size_t>(peer)]).offer(header, at(step.region));
    }
  std::fill(index.begin(), index.end(), 0);
}

void Interpreter::ask_readers(const Step& step) {
  readers_.clear();
  for (int32_t i = 0; i < step.readers; ++i) {
    const int32_t member = execution_->plan->readers[static_cast<size_t>(step.first_reader + i)];
    Reader reader;
    reader.link = &transport_.link(execution_->ranks[static_cast<size_t>(member)]);
    reader.header = next_header(member, step.region.bytes());
    reader.target = reader.link->offered(reader.header);
    readers_.push_back(reader);
  }
}

void Interpreter::hand_to_readers(const Step& step) {
  for (const Reader& reader : readers_) {
    if (reader.target != nullptr)
      reader.link->post_written(reader.header);
    else
      reader.link->post(reader.header, at(step.region));
  }
}

// True if the message of a receive was written where this rank offered it.
bool Interpreter::take_written(const Step& step) {
  if (!step.offered) return false;
  const auto peer =
      static_cast<size_t>(execution_->plan->operands[static_cast<size_t>(step.first_operand)].peer);
  const int rank = execution_->ranks[peer];
  Link& link = transport_.link(rank);
  await(rank, [&] { return link.front() != nullptr; });
  if (!link.is_written()) return false;
  MessageHeader expected = execution_->header;
  expected.index = received_[peer]++;
  expected.bytes = static_cast<uint64_t>(step.region.bytes());
  if (*link.front() != expected) (*execution_->on_mismatch)(rank, expected, *link.front());
  link.take_written();
  return true;
}

void Interpreter::wait_until_taken(int member, uint64_t messages) {
  const int rank = execution_->ranks[static_cast<size_t>(member)];
  Link& link = transport_.link(rank);
  await(rank, [&] { return link.taken() >= messages; });
}

void Interpreter::combine_arriving(const Step& step) {
  if (take_written(step)) return;
  const Plan& plan = *execution_->plan;
  const std::span<const PlanOperand> operands(plan.operands.data() + step.first_operand,
                                              static_cast<size_t>(step.operands));
  sources_.clear();
  arrivals_.clear();
  readers_.clear();
  for (const PlanOperand& operand : operands) {
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
    // Whose part has arrived has made its offer before.
    if (first) ask_readers(step);
    // What readers have offered a place for goes there while it is at hand.
    targets_ = {target};
    for (const Reader& reader : readers_)
      if (reader.target != nullptr) targets_.push_back(reader.target + (target - at(step.region)));
    combine(sources_, plan.reduction, plan.accumulator, step.region.dtype, targets_, count);
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
  hand_to_readers(step);
}

// How many elements of a message can be read, at least one.
int64_t Interpreter::wait_for_elements(Arrival& arrival, const PlanOperand& operand, int64_t left,
                                       bool first) {
  const size_t size = size_of(operand.region.dtype);
  Link& link = *arrival.link;
  await(arrival.rank, [&] { return link.front() != nullptr && link.readable().size() >= size; });
  if (first) {
    MessageHeader expected = execution_->header;
    expected.index = received_[static_cast<size_t>(operand.peer)]++;
    expected.bytes = arrival.bytes;
    if (*link.front() != expected) (*execution_->on_mismatch)(arrival.rank, expected, *link.front());
  }
  return std::min(left, static_cast<int64_t>(link.readable().size() / size));
}

}  // namespace athanor
