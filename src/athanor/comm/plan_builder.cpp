#include "athanor/comm/plan_builder.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "athanor/base/error.h"

namespace athanor {

int64_t count_of(const Ranges& ranges) {
  int64_t count = 0;
  for (const ElementRange& range : ranges) count += range.count;
  return count;
}

Ranges pieces_of(const Ranges& ranges, int64_t most) {
  Ranges pieces;
  for (const ElementRange& range : ranges)
    for (int64_t at = range.begin; at < range.end(); at += most)
      pieces.push_back({at, std::min(most, range.end() - at)});
  return pieces;
}

PlanBuilder::PlanBuilder(const CollectiveSpec& spec, Algorithm algorithm, int member) : spec_(spec) {
  plan_.algorithm = algorithm;
  plan_.reduction = spec.reduction;
  plan_.accumulator = accumulator_of(spec.dtype);
  if (spec.kind == CollectiveKind::all_gather || spec.kind == CollectiveKind::reduce_scatter) {
    const auto before = spec.counts.begin() + member;
    const int64_t own = bytes(std::accumulate(spec.counts.begin(), before, int64_t{0}));
    (spec.kind == CollectiveKind::all_gather ? input_base_ : output_base_) = own;
  } else {
    shares_storage_ = spec.kind == CollectiveKind::all_reduce || spec.kind == CollectiveKind::broadcast;
  }
}

PlanRegion PlanBuilder::scratch(DType dtype, int64_t count) {
  constexpr int64_t line = 64;
  const PlanRegion region{Place::scratch, dtype, plan_.scratch_bytes, count};
  plan_.scratch_bytes += (region.bytes() + line - 1) / line * line;
  return region;
}

PlanRegion PlanBuilder::part(const PlanRegion& whole, int64_t begin, int64_t count) {
  return {whole.place, whole.dtype, whole.offset + begin * static_cast<int64_t>(size_of(whole.dtype)), count};
}

PlanBuilder::Outstanding PlanBuilder::extent(const PlanRegion& region) const {
  Outstanding extent{static_cast<int>(region.place), region.offset, region.offset + region.bytes(), 0, 0};
  if (region.place == Place::scratch || !shares_storage_) return extent;
  const int64_t base = region.place == Place::input ? input_base_ : output_base_;
  extent.space = static_cast<int>(Place::input);
  extent.begin += base;
  extent.end += base;
  return extent;
}

void PlanBuilder::send(int peer, const PlanRegion& region) {
  if (region.count == 0) return;
  note_sent(peer, region);
  Step step;
  step.kind = StepKind::send;
  step.peer = peer;
  step.region = region;
  plan_.steps.push_back(step);
}

void PlanBuilder::note_sent(int peer, const PlanRegion& region) {
  const auto index = static_cast<size_t>(peer);
  if (sent_.size() <= index) sent_.resize(index + 1);
  Outstanding outstanding = extent(region);
  outstanding.peer = peer;
  outstanding.message = sent_[index]++;
  outstanding_.push_back(outstanding);
}

void PlanBuilder::receive(int peer, DType dtype, const PlanRegion& target) {
  add(StepKind::receive, {from(peer, dtype, target.count)}, target);
}

void PlanBuilder::copy(const PlanRegion& source, const PlanRegion& target) {
  add(StepKind::copy, {local(source)}, target);
}

void PlanBuilder::receive_offered(int peer, DType dtype, const PlanRegion& target) {
  receive(peer, dtype, target);
  if (target.count > 0) plan_.steps.back().offered = true;
}

void PlanBuilder::reduce(const std::vector<PlanOperand>& operands, const PlanRegion& target,
                         const std::vector<int32_t>& readers) {
  add(StepKind::reduce, operands, target);
  if (target.count == 0 || readers.empty()) return;
  plan_.steps.back().first_reader = static_cast<int32_t>(plan_.readers.size());
  plan_.steps.back().readers = static_cast<int32_t>(readers.size());
  plan_.readers.insert(plan_.readers.end(), readers.begin(), readers.end());
  for (const int32_t reader : readers) note_sent(reader, target);
}

void PlanBuilder::add(StepKind kind, const std::vector<PlanOperand>& operands, const PlanRegion& target) {
  if (target.count == 0) return;
  Step step;
  step.kind = kind;
  step.region = target;
  step.first_operand = static_cast<int32_t>(plan_.operands.size());
  step.operands = static_cast<int32_t>(operands.size());
  for (const PlanOperand& operand : operands)
    ATHANOR_ASSERT(operand.region.count == target.count, "{} elements into {}", operand.region.count,
                   target.count);
  plan_.operands.insert(plan_.operands.end(), operands.begin(), operands.end());
  // In place, a copy to where it comes from changes nothing; otherwise the two do not share storage.
  const Outstanding from = extent(operands[0].region), to = extent(target);
  const bool stays = kind == StepKind::copy && operands[0].region.dtype == target.dtype &&
                     from.space == to.space && from.begin == to.begin;
  if (!stays) await_readers(step);
  plan_.steps.push_back(step);
}

void PlanBuilder::await_readers(Step& step) {
  const Outstanding target = extent(step.region);
  step.first_await = static_cast<int32_t>(plan_.awaits.size());
  for (const Outstanding& sent : outstanding_) {
    if (sent.space != target.space || sent.begin >= target.end || target.begin >= sent.end) continue;
    plan_.awaits.push_back({sent.peer, sent.message});
  }
  step.awaits = static_cast<int32_t>(plan_.awaits.size()) - step.first_await;
  for (int32_t i = 0; i < step.awaits; ++i) {
    const Await await = plan_.awaits[static_cast<size_t>(step.first_await + i)];
    std::erase_if(outstanding_, [&](const Outstanding& sent) {
      return sent.peer == await.peer && sent.message <= await.message;
    });
  }
}

}  // namespace athanor
