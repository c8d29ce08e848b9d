// What tests of collectives share: examples, numbers in any type, a plain reference, a run in one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "athanor/comm/algorithm.h"
#include "athanor/comm/collective.h"
#include "athanor/comm/plan_run.h"
#include "athanor/comm/reduction.h"

namespace athanor {

// One spec for each member, with `count` elements or about that many in blocks of uneven lengths, some empty.
inline std::vector<CollectiveSpec> example_specs(CollectiveKind kind, int members, int64_t count,
                                                 Algorithm algorithm, int root) {
  const auto n = static_cast<size_t>(members);
  CollectiveSpec spec;
  spec.kind = kind;
  spec.algorithm = algorithm;
  spec.root = root;
  spec.counts = {count};
  if (kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter) {
    spec.counts.assign(n, 0);
    for (size_t m = 0; m < n; ++m)
      spec.counts[m] = count == 0 || m % 5 == 3 ? 0 : count / members + static_cast<int64_t>(m % 3);
  }
  std::vector<CollectiveSpec> specs(n, spec);
  if (kind == CollectiveKind::all_to_all) {
    const auto travelling = [&](size_t from, size_t to) {
      return count == 0 ? 0 : static_cast<int64_t>((from * 7 + to * 3 + static_cast<size_t>(count)) % 6);
    };
    for (size_t m = 0; m < n; ++m) {
      specs[m].counts.assign(n, 0);
      specs[m].receive_counts.assign(n, 0);
      for (size_t peer = 0; peer < n; ++peer) {
        specs[m].counts[peer] = travelling(m, peer);
        specs[m].receive_counts[peer] = travelling(peer, m);
      }
    }
  }
  return specs;
}

inline std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  const CombineSource source{reinterpret_cast<const std::byte*>(values.data()), DType::fp64};
  const bool whole = dtype == DType::int32 || dtype == DType::int64;
  if (whole) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::int64)
        reinterpret_cast<int64_t*>(bytes.data())[i] = static_cast<int64_t>(values[i]);
      if (dtype == DType::int32)
        reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(values[i]);
    }
  } else {
    combine(std::span(&source, 1), CollectiveReduction::sum, DType::fp64, dtype, bytes.data(),
            static_cast<int64_t>(values.size()));
  }
  return bytes;
}

inline std::vector<double> decode(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  const CombineSource source{bytes.data(), dtype};
  combine(std::span(&source, 1), CollectiveReduction::sum, DType::fp64, DType::fp64,
          reinterpret_cast<std::byte*>(values.data()), static_cast<int64_t>(values.size()));
  return values;
}

// Runs plans with real numbers.
class Numbers {
 public:
  struct Message {
    PlanRegion region;
    std::vector<std::byte> bytes;
  };
  using Places = std::array<std::vector<std::byte>, 3>;
  explicit Numbers(std::vector<Places> memory) : memory_(std::move(memory)) {}

  Message send(int member, const PlanRegion& region) {
    const std::byte* const data = at(member, region);
    return {region, {data, data + region.bytes()}};
  }
  void combine(int member, const Plan& plan, const Step& step, std::span<const Message*> received) {
    std::vector<CombineSource> sources;
    for (size_t i = 0; i < received.size(); ++i) {
      const PlanOperand& operand = plan.operands[static_cast<size_t>(step.first_operand) + i];
      sources.push_back({received[i] != nullptr ? received[i]->bytes.data() : at(member, operand.region),
                         operand.region.dtype});
    }
    athanor::combine(sources, plan.reduction, plan.accumulator, step.region.dtype, at(member, step.region),
                     step.region.count);
  }
  bool overlap(int, const PlanRegion&, const PlanRegion&) const { return false; }
  std::vector<std::byte>& output(size_t member) { return memory_[member][1]; }

 private:
  std::byte* at(int member, const PlanRegion& region) {
    return memory_[static_cast<size_t>(member)][static_cast<size_t>(region.place)].data() + region.offset;
  }
  std::vector<Places> memory_;
};

// The outputs by member when the plans of all members are run in one thread.
inline std::vector<std::vector<std::byte>> run_in_lockstep(
    const std::vector<CollectiveSpec>& specs, const GroupShape& group,
    const std::vector<std::vector<std::byte>>& inputs) {
  std::vector<Plan> plans;
  std::vector<Numbers::Places> memory(specs.size());
  for (size_t m = 0; m < specs.size(); ++m) {
    plans.push_back(plan_collective(specs[m], group, static_cast<int>(m)));
    memory[m][0] = inputs[m];
    memory[m][1].resize(static_cast<size_t>(output_count(specs[m], static_cast<int>(m))) *
                        size_of(specs[m].dtype));
    memory[m][2].resize(static_cast<size_t>(plans[m].scratch_bytes));
  }
  Numbers numbers(std::move(memory));
  PlanRun run(plans, numbers);
  const std::string fault = run.run();
  EXPECT_EQ(fault, "");
  std::vector<std::vector<std::byte>> outputs;
  for (size_t m = 0; m < specs.size(); ++m) outputs.push_back(numbers.output(m));
  return outputs;
}

}  // namespace athanor
