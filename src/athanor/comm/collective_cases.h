// Every kind of collective, by every algorithm, in every type: cases that a transport must pass. Shared by
// the tests of transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "athanor/base/philox.h"
#include "athanor/comm/comm_test_support.h"
#include "athanor/comm/communicator.h"

namespace athanor {

struct CollectiveCase {
  std::vector<CollectiveSpec> specs;            // by member
  std::vector<std::vector<double>> values;      // inputs
  std::vector<std::vector<double>> expected;    // outputs by a plain reference, where they are exact
  std::vector<std::vector<std::byte>> outputs;  // as bytes, by the same plans run in one thread
  std::string name;
};

// By their definition, in double.
inline std::vector<double> plain_output(const std::vector<CollectiveSpec>& specs,
                                        const std::vector<std::vector<double>>& inputs, int member) {
  const CollectiveSpec& spec = specs[static_cast<size_t>(member)];
  const auto before = [](const std::vector<int64_t>& counts, size_t block) {
    int64_t sum = 0;
    for (size_t i = 0; i < block; ++i) sum += counts[i];
    return sum;
  };
  std::vector<double> output;
  const auto append = [&](const std::vector<double>& from, int64_t begin, int64_t count) {
    output.insert(output.end(), from.begin() + begin, from.begin() + begin + count);
  };
  std::vector<double> reduced = inputs[0];
  if (has_reduction(spec.kind))
    for (size_t m = 1; m < inputs.size(); ++m)
      for (size_t i = 0; i < reduced.size(); ++i)
        reduced[i] = spec.reduction == CollectiveReduction::sum ? reduced[i] + inputs[m][i]
                                                                : std::max(reduced[i], inputs[m][i]);
  switch (spec.kind) {
    case CollectiveKind::all_reduce:
      return reduced;
    case CollectiveKind::reduce_scatter:
      append(reduced, before(spec.counts, static_cast<size_t>(member)),
             spec.counts[static_cast<size_t>(member)]);
      break;
    case CollectiveKind::all_gather:
      for (const auto& input : inputs) append(input, 0, static_cast<int64_t>(input.size()));
      break;
    case CollectiveKind::all_to_all:
      for (size_t from = 0; from < inputs.size(); ++from)
        append(inputs[from], before(specs[from].counts, static_cast<size_t>(member)),
               spec.receive_counts[from]);
      break;
    case CollectiveKind::broadcast:
    case CollectiveKind::receive:
      return inputs[static_cast<size_t>(spec.root)];
    case CollectiveKind::send:
      break;
  }
  return output;
}

// Small whole numbers, of which every sum is exact in every type, or numbers of all sizes, of which sums
// depend on their order.
inline CollectiveCase make_case(std::vector<CollectiveSpec> specs, const GroupShape& group, bool exact) {
  CollectiveCase test;
  test.specs = std::move(specs);
  std::vector<std::vector<std::byte>> inputs;
  for (size_t m = 0; m < test.specs.size(); ++m) {
    const CollectiveSpec& spec = test.specs[m];
    std::vector<double> values(static_cast<size_t>(input_count(spec, static_cast<int>(m))));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t random = mix64(m * 1'000'003 + i * 17 + 5);
      values[i] = exact ? static_cast<double>(random % 17) - 8
                        : (static_cast<double>(random >> 11) * 0x1p-53 - 0.5) * (i % 3 == 0 ? 1000 : 1);
    }
    inputs.push_back(encode(spec.dtype, values));
    test.values.push_back(std::move(values));
  }
  if (exact)
    for (size_t m = 0; m < test.specs.size(); ++m)
      test.expected.push_back(plain_output(test.specs, test.values, static_cast<int>(m)));
  test.outputs = run_in_lockstep(test.specs, group, inputs);
  const CollectiveSpec& spec = test.specs[0];
  test.name = fmt::format("{} {} {} as {} of {} members, counts {}", name_of(spec.kind),
                          name_of(choose_algorithm(spec, group)), name_of(spec.dtype), name_of(spec.wire),
                          group.members(), testing::PrintToString(spec.counts));
  return test;
}

inline std::vector<CollectiveCase> all_cases(const GroupShape& group, const std::vector<int64_t>& counts) {
  const int members = group.members();
  std::vector<CollectiveCase> cases;
  const auto add = [&](CollectiveKind kind, Algorithm algorithm, int64_t count, DType dtype, DType wire) {
    auto specs = example_specs(kind, members, count, algorithm, count % 2 == 0 ? 0 : members - 1);
    for (CollectiveSpec& spec : specs) {
      spec.dtype = dtype;
      spec.wire = wire;
      spec.reduction = count % 5 == 2 ? CollectiveReduction::max : CollectiveReduction::sum;
    }
    const bool whole = !is_float(dtype);
    cases.push_back(make_case(std::move(specs), group, whole || count % 2 == 0));
  };
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::broadcast); ++kind)
    for (int algorithm = 0; algorithm < algorithm_count; ++algorithm) {
      const auto k = static_cast<CollectiveKind>(kind);
      const auto a = static_cast<Algorithm>(algorithm);
      for (const int64_t count : counts) {
        add(k, a, count, DType::fp32, DType::fp32);
        add(k, a, count, DType::bf16, DType::bf16);
        add(k, a, count, DType::fp32, DType::bf16);
      }
      add(k, a, counts.back(), DType::fp64, DType::fp64);
      add(k, a, counts.back(), DType::fp16, DType::fp16);
      add(k, a, counts.back(), DType::int32, DType::int32);
      if (!has_reduction(k)) add(k, a, 7, DType::int64, DType::int64);
    }
  return cases;
}

// Runs one case on one rank; the group's members are ranks 0 ... n - 1. Empty, or what is wrong.
inline std::string run_case(Communicator& communicator, GroupId group, const CollectiveCase& test,
                            bool in_place) {
  const auto m = static_cast<size_t>(communicator.rank());
  const CollectiveSpec& spec = test.specs[m];
  const std::vector<std::byte> input = encode(spec.dtype, test.values[m]);
  const auto output_bytes =
      static_cast<size_t>(output_count(spec, communicator.rank())) * size_of(spec.dtype);
  size_t own = 0;
  for (size_t i = 0; i < m && spec.counts.size() > 1; ++i)
    own += static_cast<size_t>(spec.counts[i]) * size_of(spec.dtype);
  const auto shared = communicator.allocate(static_cast<int64_t>(input.size() + output_bytes + 128));
  Collective collective{.group = group, .spec = spec, .label = test.name};
  std::byte* source = shared.get();
  std::byte* target = shared.get() + (input.size() + 63) / 64 * 64;
  if (in_place && spec.kind != CollectiveKind::all_to_all) {
    target = shared.get();
    if (spec.kind == CollectiveKind::all_gather) source = target + own;
    if (spec.kind == CollectiveKind::reduce_scatter) target = source + own;
  }
  if (!input.empty()) std::memcpy(source, input.data(), input.size());
  collective.input = source;
  collective.output = target;
  communicator.run(*communicator.prepare(collective));
  const std::vector<std::byte> output(target, target + output_bytes);
  if (output != test.outputs[m]) return test.name + ": not the bits of the plan";
  if (!test.expected.empty() && decode(spec.dtype, output) != test.expected[m])
    return test.name + ": not what it should be";
  return {};
}

}  // namespace athanor
