// The matrix products of a training step, one by one: time, rate, and share of the machine's measured peak.
#include "athanor/kernels/cpu/matmul.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/device/cpu_device.h"
#include "athanor/kernels/cpu/matrix_peak.h"
#include "support/median.h"
#include "support/options.h"

namespace {

using namespace athanor;
using cpu::ProductForm;

struct Layer {
  const char* name;
  int64_t tokens, outputs, inputs;
  int count;  // of such products in a step
};

std::vector<Layer> layers_of(const std::string& model) {
  if (model == "char-small")
    return {{"qkv", 768, 384, 128, 4},
            {"out", 768, 128, 128, 4},
            {"up", 768, 512, 128, 4},
            {"down", 768, 128, 512, 4},
            {"head", 768, 65, 128, 1}};
  if (model == "gpt2-124m")
    return {{"qkv", 4096, 2304, 768, 12},
            {"out", 4096, 768, 768, 12},
            {"up", 4096, 3072, 768, 12},
            {"down", 4096, 768, 3072, 12},
            {"head", 1024, 50257, 768, 4}};
  throw_user_error("unknown model " + model, "gpt2-124m or char-small");
}

// Operands that are used in turn.
using Copies = std::vector<cpu::ProductOperands>;

double seconds_of(const cpu::ProductPlan& plan, ThreadTeam& team, const Copies& copies,
                  std::span<std::byte> workspace, int repetitions) {
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    const int64_t begin = monotonic_ns();
    plan.run(team, copies[static_cast<size_t>(i) % copies.size()], workspace);
    seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
  }
  return median(std::move(seconds));
}

void run(const std::string& model, DType dtype, int threads, int repetitions, int copies) {
  CpuDevice device;
  ThreadTeam team(threads);
  double peak = cpu::matrix_peak_gflops(team, dtype);
  const std::vector<Layer> layers = layers_of(model);
  int64_t most = 0;
  for (const Layer& layer : layers)
    most = std::max(
        {most, layer.tokens * layer.outputs, layer.tokens * layer.inputs, layer.outputs * layer.inputs});
  const int64_t matrix_bytes = most * 4;
  const auto left = device.allocate(copies * matrix_bytes), right = device.allocate(copies * matrix_bytes),
             result = device.allocate(copies * matrix_bytes);
  for (std::byte* matrix : {left.get(), right.get()}) {
    for (int64_t i = 0; i < copies * matrix_bytes; ++i)
      matrix[i] = i % 2 == 0 ? std::byte(i % 251) : std::byte{0x3e};
  }
  double step_seconds = 0, step_flops = 0;
  for (const Layer& layer : layers) {
    for (const ProductForm form :
         {ProductForm::forward, ProductForm::input_gradient, ProductForm::weight_gradient}) {
      const bool forward = form == ProductForm::forward, last = form == ProductForm::weight_gradient;
      const DType result_type = last ? DType::fp32 : dtype;
      const cpu::ProductShape shape{form,  layer.tokens, layer.outputs, layer.inputs,
                                    dtype, dtype,        result_type};
      const cpu::ProductPlan plan(shape, threads);
      const auto workspace = device.allocate(plan.workspace_bytes());
      Copies operands(static_cast<size_t>(copies));
      for (int64_t i = 0; i < copies; ++i) {
        const int64_t at = i * matrix_bytes;
        cpu::ProductOperands& copy = operands[static_cast<size_t>(i)];
        copy.left = {left.get() + at, dtype, forward ? layer.inputs : layer.outputs};
        copy.right = {right.get() + at, dtype, layer.inputs};
        copy.result = {result.get() + at, result_type, shape.columns()};
        copy.accumulate = last;
      }
      const double flops =
          2.0 * static_cast<double>(layer.tokens) * static_cast<double>(layer.outputs * layer.inputs);
      const std::span<std::byte> space(workspace.get(), static_cast<size_t>(plan.workspace_bytes()));
      seconds_of(plan, team, operands, space, copies);
      const double seconds =
          seconds_of(plan, team, operands, space, flops < 1e9 ? repetitions * 20 : repetitions);
      fmt::print("{:5} {:15} {:9.3f} ms {:8.1f} GFLOP/s {:6.3f} of the peak, workspace {:.1f} MB{}\n",
                 layer.name,
                 forward ? "forward"
                 : last  ? "weight gradient"
                         : "input gradient",
                 seconds * 1e3, flops / seconds * 1e-9, flops / seconds * 1e-9 / peak,
                 static_cast<double>(plan.workspace_bytes()) * 1e-6,
                 plan.uses_bf16_instructions() ? ", bf16 instructions" : "");
      step_seconds += seconds * layer.count;
      step_flops += flops * layer.count;
    }
  }
  peak = std::max(peak, cpu::matrix_peak_gflops(team, dtype));
  fmt::print(
      "{{\"model\": \"{}\", \"precision\": \"{}\", \"threads\": {}, \"products_seconds\": {:.5f}, "
      "\"products_gflops\": {:.1f}, \"matrix_peak_gflops\": {:.1f}, \"share_of_peak\": {:.4f}}}\n",
      model, name_of(dtype), threads, step_seconds, step_flops / step_seconds * 1e-9, peak,
      step_flops / step_seconds * 1e-9 / peak);
}

}  // namespace

int main(int count, char** values) {
  std::string model = "gpt2-124m", precision = "fp32";
  int threads = available_cores(), repetitions = 5, copies = 1;
  BenchmarkOptions options("Times the matrix products of a training step, one by one.");
  options.text("--model", model, "whose products", {"gpt2-124m", "char-small"});
  options.text("--precision", precision, "of the products", {"fp32", "bf16", "fp16"});
  options.number("--threads", threads, 1, 1 << 16, "of one product");
  options.number("--repetitions", repetitions, 1, 1 << 20, "their median");
  options.number("--copies", copies, 1, 1 << 10,
                 "of the operands, used in turn: many are not in the caches, as in a step");
  return options.run(count, values,
                     [&] { run(model, parse_dtype(precision).value(), threads, repetitions, copies); });
}
