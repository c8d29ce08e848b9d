// Every backend's kernels against the reference kernels, over the cases of conformance_cases.h.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include <set>

#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

struct BackendTable {
  std::string name;
  void (*fill)(KernelTable&);
};
const BackendTable backends[] = {{"cpu", add_cpu_kernels}};

// The types that programs have in each precision (compile/precision.cpp).
const TypeProfile profiles[] = {
    {DType::fp64, DType::fp64, DType::fp64}, {DType::fp32, DType::fp32, DType::fp32},
    {DType::bf16, DType::fp32, DType::fp32}, {DType::bf16, DType::bf16, DType::fp32},
    {DType::fp16, DType::fp32, DType::fp32}, {DType::fp16, DType::fp16, DType::fp32}};

// How far a result may be off: by one step of its storage type, relative to itself, and by the error of
// the arithmetic, relative to the largest result. Arithmetic is fp32 whatever the storage, so a sum in a
// 16-bit type shows; attention rounds probabilities and score gradients to its 16-bit compute type.
double storage_error(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-7;
    case DType::fp16:
      return 0x1p-10;
    case DType::fp32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}
double arithmetic_error(OperationKind kind, DType key) {
  const bool attends = kind == OperationKind::attention || kind == OperationKind::attention_gradient ||
                       kind == OperationKind::attention_part ||
                       kind == OperationKind::attention_part_gradient;
  if (attends && key == DType::bf16) return 2e-2;
  return key == DType::fp64 ? 1e-12 : 1e-5;
}
constexpr double subnormal_step = 0x1p-24;  // of fp16

void expect_close(const ConformanceCase& c, const Tensor& actual, const Tensor& expected, size_t o) {
  double largest = c.scale;
  for (const double value : expected.values()) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const double relative = storage_error(expected.dtype);
  const double absolute = arithmetic_error(c.call.kind, c.call.key()) * largest +
                          (expected.dtype == DType::fp16 ? subnormal_step : 0);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    const double want = expected.get(i), got = actual.get(i);
    if (want == got || (std::isnan(want) && std::isnan(got))) continue;
    ASSERT_LE(std::abs(got - want), relative * std::abs(want) + absolute)
        << "output " << row_of(c.call.kind).outputs[o].name << ", element " << i << " of "
        << to_text(expected.shape) << ": " << got << ", not " << want;
  }
}

// Everything about a call but its numbers.
std::string signature(const Call& call) {
  std::string text = fmt::format("{}: {}{}", name_of(call.kind), call.description,
                                 to_text(call.attributes, row_of(call.kind).fields));
  for (const auto* tensors : {&call.inputs, &call.outputs}) {
    for (const Tensor& tensor : *tensors) {
      text += tensor.present ? fmt::format(", {}{}", name_of(tensor.dtype), to_text(tensor.shape)) : ", none";
      if (tensor.padding > 0) text += fmt::format("+{}", tensor.padding);
    }
  }
  return text;
}

// One case: close to the reference, and the same bits with 1, 2 and 3 threads.
void check(const KernelTable& table, const ConformanceCase& c) {
  static ThreadTeam teams[] = {ThreadTeam(1), ThreadTeam(2), ThreadTeam(3)};
  SCOPED_TRACE(signature(c.call));
  Call expected = c.call;
  run_reference(expected);
  Call actual = c.call;
  std::vector<Tensor> first;
  for (ThreadTeam& team : teams) {
    if (!first.empty()) actual.outputs = c.call.outputs;
    if (!first.empty() && !actual.shared_with.empty()) actual.inputs = c.call.inputs;
    run(table, actual, team);
    if (::testing::Test::HasFatalFailure()) return;
    if (first.empty()) {
      for (size_t o = 0; o < actual.outputs.size(); ++o) {
        ASSERT_NO_FATAL_FAILURE(expect_close(c, actual.outputs[o], expected.outputs[o], o));
      }
      first = actual.outputs;
      continue;
    }
    for (size_t o = 0; o < first.size(); ++o) {
      ASSERT_TRUE(first[o].bytes == actual.outputs[o].bytes)
          << "output " << o << " has other bits with " << team.size() << " threads";
    }
  }
}

std::vector<ConformanceCase> cases_of(OperationKind kind, const TypeProfile& profile) {
  CaseBuilder builder(profile);
  bool known = add_layer_cases(kind, builder);
  known |= add_attention_cases(kind, builder);
  known |= add_cache_cases(kind, builder);
  known |= add_sharded_cases(kind, builder);
  if (!known) add_step_cases(kind, builder);
  return builder.take();
}

class Conformance : public ::testing::TestWithParam<int> {};

// Runs the cases of one operation, and sees to it that each of its kernels has met at least one of them.
TEST_P(Conformance, CpuAgreesWithReference) {
  const auto kind = static_cast<OperationKind>(GetParam());
  for (const BackendTable& backend : backends) {
    SCOPED_TRACE(backend.name);
    KernelTable table;
    backend.fill(table);
    std::set<DType> met;
    std::set<std::string> done;  // two profiles may agree about an operation
    for (const TypeProfile& profile : profiles) {
      const std::vector<ConformanceCase> cases = cases_of(kind, profile);
      ASSERT_FALSE(cases.empty()) << name_of(kind) << " needs cases in conformance_cases.h";
      bool found = false;
      for (const ConformanceCase& c : cases) {
        if (table.find(kind, c.call.key()) == nullptr) continue;
        found = true;
        if (!done.insert(signature(c.call)).second) continue;
        met.insert(c.call.key());
        ASSERT_NO_FATAL_FAILURE(check(table, c));
      }
      // fp64 is for proofs, on the reference kernels.
      EXPECT_TRUE(found || profile.compute == DType::fp64)
          << "no " << name_of(kind) << " for models in " << name_of(profile.compute);
    }
    for (int i = 0; i < dtype_count; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (table.find(kind, dtype) == nullptr || reference_table().find(kind, dtype) == nullptr) continue;
      EXPECT_TRUE(met.contains(dtype))
          << "no case reaches the " << name_of(dtype) << " kernel of " << name_of(kind);
    }
  }
}

// That the harness sees what it looks for: a slightly wrong element, bits that depend on the team, a
// step beyond a row.
void run_add(const KernelArguments& a, const KernelContext& context) {
  reference_table().find(OperationKind::add, DType::fp32)->run(a, context);
}
void wrong_element(const KernelArguments& a, const KernelContext& context) {
  run_add(a, context);
  if (a.outputs[0].shape.elements() > 0) a.outputs[0].as<float>()[0] += 1e-3F;
}
void other_bits(const KernelArguments& a, const KernelContext& context) {
  run_add(a, context);
  if (a.outputs[0].shape.elements() > 0 && context.team->size() == 3) {
    float& first = a.outputs[0].as<float>()[0];
    first = std::nextafter(first, 2.0F);
  }
}
void beyond_the_row(const KernelArguments& a, const KernelContext& context) {
  run_add(a, context);
  const TensorView& y = a.outputs[0];
  if (!y.compact() && y.shape.elements() > 0) y.as<float>()[y.shape.elements_per_token()] = 0;
}
// What the harness says about a kernel for fp32 sums.
std::string complaints(Kernel kernel) {
  KernelTable table;
  table.set(OperationKind::add, DType::fp32, kernel);
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    for (const ConformanceCase& c : cases_of(OperationKind::add, profiles[1])) check(table, c);
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i) text += results.GetTestPartResult(i).message();
  return text;
}

TEST(ConformanceHarness, SeesFaults) {
  EXPECT_EQ(complaints({.run = run_add}), "");
  EXPECT_THAT(complaints({.run = wrong_element}), ::testing::HasSubstr("element 0 of"));
  EXPECT_THAT(complaints({.run = other_bits}), ::testing::HasSubstr("has other bits with 3 threads"));
  EXPECT_THAT(complaints({.run = beyond_the_row}), ::testing::HasSubstr("padding was written"));
}

std::vector<int> kinds_with_kernels() {
  std::vector<int> kinds;
  for (int i = 0; i < operation_kind_count; ++i) {
    const auto kind = static_cast<OperationKind>(i);
    const OperationRow& row = row_of(kind);
    if (row.is_view || row.is_collective) continue;
    kinds.push_back(i);
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Conformance, ::testing::ValuesIn(kinds_with_kernels()),
                         [](const auto& parameter) {
                           return std::string(name_of(static_cast<OperationKind>(parameter.param)));
                         });

}  // namespace
}  // namespace athanor::testing
