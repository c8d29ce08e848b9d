#include "athanor/kernels/cpu/matrix_peak.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <span>
#include <unordered_map>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/matmul.h"
#include "athanor/kernels/cpu/onednn_thread.h"

namespace athanor::cpu {
namespace {

constexpr int repetitions = 6;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// `count` elements that are neither zero nor subnormal, on a cache line.
class Matrix {
 public:
  Matrix(DType dtype, int64_t count)
      : bytes_(static_cast<size_t>(count) * size_of(dtype)),
        memory_(new(std::align_val_t{64}) std::byte[bytes_]) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(i % 13 - 6) / 8;
      if (dtype == DType::fp32) reinterpret_cast<float*>(data())[i] = value;
      if (dtype == DType::bf16) reinterpret_cast<BFloat16*>(data())[i] = BFloat16(value);
      if (dtype == DType::fp16) reinterpret_cast<Float16*>(data())[i] = Float16(value);
    }
  }
  std::byte* data() const { return memory_.get(); }
  std::span<std::byte> span() const { return {data(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

double best_product(ThreadTeam& team, ProductForm form, DType dtype, int64_t side) {
  const int64_t tokens = side * std::max(2, team.size());
  const DType result_type = form == ProductForm::weight_gradient ? DType::fp32 : dtype;
  const ProductShape shape{form, tokens, 2 * side, side, dtype, dtype, result_type};
  const ProductPlan plan(shape, team.size());
  const bool forward = form == ProductForm::forward;
  const int64_t left_columns = forward ? shape.inputs : shape.outputs;
  const int64_t right_rows = form == ProductForm::weight_gradient ? tokens : shape.outputs;
  const Matrix left(dtype, tokens * left_columns), right(dtype, right_rows * shape.inputs);
  const Matrix result(result_type, shape.rows() * shape.columns()),
      workspace(DType::u8, plan.workspace_bytes());
  ProductOperands operands;
  operands.left = {left.data(), dtype, left_columns};
  operands.right = {right.data(), dtype, shape.inputs};
  operands.result = {result.data(), result_type, shape.columns()};
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i)
    best = std::min(best, seconds_of([&] { plan.run(team, operands, workspace.span()); }));
  return 2.0 * static_cast<double>(shape.rows() * shape.columns() * shape.depth()) / best;
}

// Every thread multiplies matrices of its own, so nothing but the primitive is measured.
double best_onednn(ThreadTeam& team, dnnl::memory::data_type dtype, bool right_transposed, int64_t side) {
  using dnnl::memory;
  const DType storage = dtype == memory::data_type::f32 ? DType::fp32 : DType::bf16;
  const OneThread one_thread;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc left({side, side}, dtype, memory::format_tag::ab);
  const memory::desc right({side, side}, dtype,
                           right_transposed ? memory::format_tag::ba : memory::format_tag::ab);
  const memory::desc result({side, side}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul primitive(dnnl::matmul::primitive_desc(dnnl::matmul::desc(left, right, result), engine));
  struct Thread {
    Matrix left, right, result;
    dnnl::stream stream;
    std::unordered_map<int, memory> arguments;
  };
  std::vector<Thread> threads;
  for (int i = 0; i < team.size(); ++i) {
    Thread& thread = threads.emplace_back(Thread{Matrix(storage, side * side),
                                                 Matrix(storage, side * side),
                                                 Matrix(DType::fp32, side * side),
                                                 dnnl::stream(engine),
                                                 {}});
    thread.arguments = {{DNNL_ARG_SRC, memory(left, engine, thread.left.data())},
                        {DNNL_ARG_WEIGHTS, memory(right, engine, thread.right.data())},
                        {DNNL_ARG_DST, memory(result, engine, thread.result.data())}};
  }
  constexpr int64_t products = 8;  // handed out one by one: a thread that is held up does fewer
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    best = std::min(best, seconds_of([&] {
                      team.parallel_for(products * team.size(), [&](int64_t, int index) {
                        const OneThread one;
                        Thread& thread = threads[static_cast<size_t>(index)];
                        primitive.execute(thread.stream, thread.arguments);
                      });
                    }));
  }
  return 2.0 * static_cast<double>(side * side * side * products * team.size()) / best;
}

}  // namespace

double matrix_peak_gflops(ThreadTeam& team, DType dtype, int64_t side) {
  ATHANOR_ASSERT(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16, "{}", name_of(dtype));
  double best = 0;
  for (const ProductForm form :
       {ProductForm::forward, ProductForm::input_gradient, ProductForm::weight_gradient})
    best = std::max(best, best_product(team, form, dtype, side));
  try {
    for (const bool right_transposed : {false, true}) {
      if (dtype == DType::fp32)
        best = std::max(best, best_onednn(team, dnnl::memory::data_type::f32, right_transposed, side));
      if (dtype == DType::bf16)
        best = std::max(best, best_onednn(team, dnnl::memory::data_type::bf16, right_transposed, side));
    }
  } catch (const dnnl::error&) {
    // This machine has no such product in oneDNN (bf16 before AVX-512): then it is not the peak.
  }
  return best / 1e9;
}

}  // namespace athanor::cpu
