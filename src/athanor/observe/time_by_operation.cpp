#include "athanor/observe/time_by_operation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/observe/format.h"

namespace athanor {

namespace {

// Length of the union of intervals.
int64_t covered(std::vector<std::pair<int64_t, int64_t>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t total = 0, reached = 0;
  bool first = true;
  for (const auto& [begin, end] : intervals) {
    const int64_t from = first ? begin : std::max(begin, reached);
    total += std::max<int64_t>(end - from, 0);
    reached = first ? end : std::max(reached, end);
    first = false;
  }
  return total;
}

void sort_by_time(std::vector<OperationTime>& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const OperationTime& a, const OperationTime& b) { return a.seconds > b.seconds; });
}

std::string table_row(const OperationTime& row, double step_seconds, size_t name_width) {
  const double share = step_seconds > 0 ? row.seconds / step_seconds : 0;
  std::string line = fmt::format("{:>6}  {:>9}  {:>8}", format_share(share), format_seconds(row.seconds),
                                 format_count(row.count));
  const bool timed = row.seconds > 0;
  line += fmt::format("  {:>9}", timed && row.flops > 0 ? format_short(row.flops / row.seconds * 1e-9) : "-");
  line += fmt::format("  {:>8}", timed && row.bytes > 0 ? format_short(row.bytes / row.seconds * 1e-9) : "-");
  line += fmt::format("  {:<{}}", row.name, name_width);
  if (!row.template_name.empty()) line += "  " + row.template_name;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

double TimeSummary::outside_kernels_share() const {
  return step_seconds > 0 ? 1.0 - compute_seconds / step_seconds : 0.0;
}

void TimeByOperation::add(const StepProgram& program, std::span<const Record> records, int64_t begin_ns,
                          int64_t end_ns) {
  ATHANOR_ASSERT(begin_ns <= end_ns, "a step from {} to {}", begin_ns, end_ns);
  std::vector<std::pair<int64_t, int64_t>> compute;
  for (const Record& record : records) {
    ATHANOR_ASSERT(begin_ns <= record.begin_ns && record.begin_ns <= record.end_ns && record.end_ns <= end_ns,
                   "record from {} to {} in a step from {} to {}", record.begin_ns, record.end_ns, begin_ns,
                   end_ns);
    const auto call = static_cast<size_t>(record.address.call);
    ATHANOR_ASSERT(call < program.calls.size(), "call {}", record.address.call);
    const Template& block = program.templates[static_cast<size_t>(program.calls[call].template_id)];
    const auto operation = static_cast<size_t>(record.address.operation);
    ATHANOR_ASSERT(operation < block.graph.operations.size(), "operation {}", record.address.operation);

    Sum& sum = sums_[{block.name, record.kind}];
    ++sum.count;
    sum.nanoseconds += record.end_ns - record.begin_ns;
    if (record.address.iteration == 0) {  // the cost is that of all iterations
      const Cost cost = cost_of(block.graph, block.graph.operations[operation]);
      sum.cost.flops += cost.flops;
      sum.cost.bytes += cost.bytes;
    }
    if (record.stream == StreamKind::compute) compute.emplace_back(record.begin_ns, record.end_ns);
  }
  ++steps_;
  step_ns_ += end_ns - begin_ns;
  compute_ns_ += covered(std::move(compute));
}

TimeSummary TimeByOperation::summary() const {
  TimeSummary summary;
  summary.steps = steps_;
  if (steps_ == 0) return summary;
  const double per_step = 1.0 / static_cast<double>(steps_);
  summary.step_seconds = static_cast<double>(step_ns_) * 1e-9 * per_step;
  summary.compute_seconds = static_cast<double>(compute_ns_) * 1e-9 * per_step;
  std::map<OperationKind, OperationTime> kinds;
  for (const auto& [key, sum] : sums_) {
    const OperationTime row{.name = std::string(name_of(key.second)),
                            .template_name = key.first,
                            .count = static_cast<double>(sum.count) * per_step,
                            .seconds = static_cast<double>(sum.nanoseconds) * 1e-9 * per_step,
                            .flops = sum.cost.flops * per_step,
                            .bytes = sum.cost.bytes * per_step};
    summary.by_template.push_back(row);
    OperationTime& total = kinds[key.second];
    total.name = row.name;
    total.count += row.count;
    total.seconds += row.seconds;
    total.flops += row.flops;
    total.bytes += row.bytes;
  }
  for (auto& [kind, total] : kinds) summary.by_kind.push_back(std::move(total));
  sort_by_time(summary.by_kind);
  sort_by_time(summary.by_template);
  return summary;
}

std::string to_table(const TimeSummary& summary) {
  size_t name_width = 0;
  for (const auto& row : summary.by_kind) name_width = std::max(name_width, row.name.size());
  const std::string header = " share     a step     count   GFLOP/s      GB/s  operation\n";
  std::string out = header;
  for (const auto& row : summary.by_kind) out += table_row(row, summary.step_seconds, name_width);
  out += fmt::format("{:>6}  {:>9}  outside of kernels\n", format_share(summary.outside_kernels_share()),
                     format_seconds(std::max(summary.step_seconds - summary.compute_seconds, 0.0)));
  out += fmt::format("{:>6}  {:>9}  step, mean of {}\n\n", "", format_seconds(summary.step_seconds),
                     summary.steps);
  out += header;
  for (const auto& row : summary.by_template) out += table_row(row, summary.step_seconds, name_width);
  return out;
}

std::string seconds_by_kind_json(const TimeSummary& summary) {
  std::string out = "{";
  for (const auto& row : summary.by_kind) {
    out += fmt::format("{}\"{}\":{}", out.size() > 1 ? "," : "", row.name, row.seconds);
  }
  return out + "}";
}

}  // namespace athanor
