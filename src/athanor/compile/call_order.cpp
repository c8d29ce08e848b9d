#include "athanor/compile/call_order.h"

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/ir/layer_name.h"

namespace athanor {

bool CallOrder::runs_on(const PlannedCall& call, StreamKind stream) const {
  return std::ranges::any_of(block_of(call).instructions,
                             [stream](const Instruction& i) { return i.stream == stream; });
}

size_t CallOrder::add(PlannedCall call) {
  if (runs_on(call, StreamKind::compute)) {
    for (Late& late : late_) --late.compute_calls_left;
    while (!late_.empty() && late_.front().compute_calls_left < 0) {
      pending_.push_back(late_.front().call);
      late_.pop_front();
    }
    call.waits = std::move(pending_);
    pending_.clear();
  }
  calls_.push_back(std::move(call));
  return calls_.size() - 1;
}

void CallOrder::wait_next(const std::vector<size_t>& calls) {
  pending_.insert(pending_.end(), calls.begin(), calls.end());
}

void CallOrder::wait_later(size_t call) {
  late_.push_back({call, window_});
}

void CallOrder::insert_gathers(const std::vector<TemplateId>& gather,
                               const std::vector<BucketTable>& tables) {
  // The compute calls, and for each what is to be gathered before it.
  std::vector<size_t> compute;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (runs_on(calls_[i], StreamKind::compute)) compute.push_back(i);
  }
  struct Gather {
    size_t table;
    std::string buffer;
    size_t user;  // the first
  };
  struct Use {
    int64_t at = -1;
    std::string buffer = {};
  };
  std::vector<std::vector<Gather>> before(compute.size());
  std::map<std::string, Use> last;  // by name of the base
  int64_t instances = 0;
  for (size_t at = 0; at < compute.size(); ++at) {
    PlannedCall& call = calls_[compute[at]];
    if (call.micro_batch < 0) continue;  // updates write weights
    for (const Base& base : block_of(call).bases) {
      if (!base.name.starts_with("working.")) continue;
      const std::string name = fill_layer(base.name, call.layer);
      const auto table =
          std::ranges::find_if(tables, [&](const BucketTable& t) { return "working." + t.name == name; });
      ATHANOR_ASSERT(table != tables.end(), "no bucket {}", name);
      const auto here = static_cast<int64_t>(at);
      Use& use = last[name];
      if (use.at < 0 || here - use.at > window_) {
        use.buffer = fmt::format("gathered.{}.{}", instances++, table->name);
        before[static_cast<size_t>(std::max<int64_t>(0, here - window_))].push_back(
            {static_cast<size_t>(table - tables.begin()), use.buffer, compute[at]});
      }
      use.at = here;
      call.gathered[name] = use.buffer;
    }
  }

  std::vector<PlannedCall> old = std::move(calls_);
  calls_.clear();
  std::vector<size_t> moved(old.size());
  std::map<size_t, std::vector<size_t>> awaited;  // by old index of the user: gathers
  size_t next = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    if (next < compute.size() && compute[next] == i) {
      for (const Gather& one : before[next]) {
        PlannedCall call{.id = gather[bucket_kind(one.table, tables.size())],
                         .layer = bucket_layer(one.table, tables.size())};
        call.gathered["working." + tables[one.table].name] = one.buffer;
        awaited[one.user].push_back(calls_.size());
        calls_.push_back(std::move(call));
      }
      ++next;
    }
    for (size_t& wait : old[i].waits) wait = moved[wait];
    const auto& gathers = awaited[i];
    old[i].waits.insert(old[i].waits.end(), gathers.begin(), gathers.end());
    moved[i] = calls_.size();
    calls_.push_back(std::move(old[i]));
  }
}

std::vector<PlannedCall> CallOrder::take() {
  const auto is_collective = [&](const PlannedCall& call) {
    return !runs_on(call, StreamKind::compute) && runs_on(call, StreamKind::communication);
  };
  size_t last_compute = no_call;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (runs_on(calls_[i], StreamKind::compute)) {
      last_compute = i;
    } else if (is_collective(calls_[i]) && last_compute != no_call) {
      calls_[i].waits.push_back(last_compute);
    }
  }
  // A wait for a collective is one for all before it, too.
  size_t freed = calls_.size();
  std::vector<size_t> first_wait(calls_.size(), calls_.size());
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (is_collective(calls_[i])) continue;
    for (const size_t wait : calls_[i].waits) first_wait[wait] = std::min(first_wait[wait], i);
  }
  for (size_t i = calls_.size(); i-- > 0;) {
    if (!is_collective(calls_[i])) continue;
    freed = std::min(freed, first_wait[i]);
    calls_[i].freed_before = freed;
  }
  for (PlannedCall& call : calls_) {
    std::ranges::sort(call.waits);
    call.waits.erase(std::unique(call.waits.begin(), call.waits.end()), call.waits.end());
  }
  return std::move(calls_);
}

}  // namespace athanor
