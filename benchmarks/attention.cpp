// Speed of attention forward and backward, beside a product of the same machine in the same run.
//
// Prints the median time of interleaved rounds, GFLOP/s over the visible pairs alone, and GFLOP/s over the
// blocks that were computed.
#include "athanor/kernels/cpu/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <dnnl.hpp>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "athanor/kernels/cpu/matmul.h"
#include "support/median.h"
#include "support/options.h"

namespace {

using namespace athanor;
using namespace athanor::cpu;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Buffer {
  explicit Buffer(int64_t bytes)
      : size(static_cast<size_t>(bytes)), data(new(std::align_val_t{64}) std::byte[size]) {
    std::memset(data, 0, size);
  }
  ~Buffer() { ::operator delete[](data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  size_t size;
  std::byte* data;
};

// A large fp32 product of this program, run beside attention in every round: what it is compared with.
class Yardstick {
 public:
  explicit Yardstick(ThreadTeam& team)
      : team_(team),
        plan_({ProductForm::forward, tokens, side, side}, team.size()),
        space_(plan_.workspace_bytes()) {}
  double run() {
    ProductOperands operands;
    operands.left = {x_.data, DType::fp32, side};
    operands.right = {weight_.data, DType::fp32, side};
    operands.result = {y_.data, DType::fp32, side};
    const double begin = seconds();
    plan_.run(team_, operands, {space_.data, space_.size});
    return seconds() - begin;
  }
  static double flops() { return 2.0 * tokens * side * side; }

 private:
  static constexpr int64_t tokens = 2048, side = 768;
  ThreadTeam& team_;
  ProductPlan plan_;
  Buffer space_, x_{tokens * side * 4}, weight_{side * side * 4}, y_{tokens * side * 4};
};

struct Arguments {
  int64_t sequence = 1024, batch = 4, heads = 12, key_heads = 0, size = 64, window = 0, rounds = 9;
  int threads = 2;
  double dropout = 0;
  std::string type = "fp32", arithmetic = "automatic";
};

void bench(const Arguments& arguments) {
  const auto& [sequence, batch, heads, any_key_heads, size, window, rounds, threads, dropout, type,
               arithmetic] = arguments;
  const int64_t key_heads = any_key_heads == 0 ? heads : any_key_heads;
  const DType dtype = parse_dtype(type).value();
  const auto bytes = static_cast<int64_t>(size_of(dtype));

  // One row holds q, k, v side by side, as the fused product leaves them.
  const int64_t tokens = batch * sequence, row = (heads + 2 * key_heads) * size;
  Buffer qkv(tokens * row * bytes), dqkv(tokens * row * bytes);
  Buffer out(tokens * heads * size * bytes), dout(tokens * heads * size * bytes);
  std::minstd_rand random(1);
  for (Buffer* buffer : {&qkv, &dout}) {
    for (size_t i = 0; i < buffer->size / static_cast<size_t>(bytes); ++i) {
      const float value = static_cast<float>(random() % 4096) / 1024.0F - 2.0F;
      if (dtype == DType::fp32) reinterpret_cast<float*>(buffer->data)[i] = value;
      if (dtype == DType::bf16) reinterpret_cast<BFloat16*>(buffer->data)[i] = BFloat16(value);
      if (dtype == DType::fp16) reinterpret_cast<Float16*>(buffer->data)[i] = Float16(value);
    }
  }
  std::vector<float> logsumexp(static_cast<size_t>(tokens * heads));
  std::vector<int32_t> positions(static_cast<size_t>(tokens)), documents(positions.size(), 0);
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(i % static_cast<size_t>(sequence));
  const std::vector<int64_t> samples(static_cast<size_t>(batch), 7);

  AttentionForward forward;
  forward.shape = {batch, sequence, sequence, heads, key_heads, size};
  forward.options.scale = 1 / std::sqrt(static_cast<double>(size));
  forward.options.window = window;
  forward.options.dropout.probability = dropout;
  forward.options.dropout.sample_ids = samples.data();
  if (arithmetic == "convert") forward.options.arithmetic = AttentionArithmetic::convert;
  if (arithmetic == "dot") forward.options.arithmetic = AttentionArithmetic::dot;
  forward.query_tokens = forward.key_tokens = {positions.data(), documents.data(), positions.data()};
  const auto slice = [&](Buffer& buffer, int64_t column) {
    return Rows{buffer.data + column * bytes, dtype, row};
  };
  forward.q = slice(qkv, 0);
  forward.k = slice(qkv, heads * size);
  forward.v = slice(qkv, (heads + key_heads) * size);
  forward.out = {out.data, dtype, heads * size};
  forward.logsumexp = rows_of(logsumexp.data(), heads);
  AttentionBackward backward;
  backward.shape = forward.shape;
  backward.options = forward.options;
  backward.query_tokens = forward.query_tokens;
  backward.key_tokens = forward.key_tokens;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.out = forward.out;
  backward.dout = {dout.data, dtype, heads * size};
  backward.logsumexp = forward.logsumexp;
  backward.dq = slice(dqkv, 0);
  backward.dk = slice(dqkv, heads * size);
  backward.dv = slice(dqkv, (heads + key_heads) * size);

  ThreadTeam team(threads);
  Buffer forward_space(attention_workspace_bytes(forward.shape, AttentionDirection::forward, threads));
  Buffer backward_space(attention_workspace_bytes(backward.shape, AttentionDirection::backward, threads));
  Yardstick yardstick(team);
  std::vector<double> products, forwards, backwards;
  for (int64_t round = 0; round <= rounds; ++round) {
    const double product = yardstick.run();
    const double start = seconds();
    attention_forward(forward, team, forward_space.data);
    const double middle = seconds();
    attention_backward(backward, team, backward_space.data);
    const double end = seconds();
    if (round == 0) continue;
    products.push_back(product);
    forwards.push_back(middle - start);
    backwards.push_back(end - middle);
  }
  int64_t pairs = 0;
  for (int64_t i = 0; i < sequence; ++i) pairs += window > 0 ? std::min(i + 1, window) : i + 1;
  // One pair is 2 E FLOPs a product.
  const double visible = static_cast<double>(batch * heads * pairs) * 2.0 * static_cast<double>(size);
  const double blocks = static_cast<double>(heads * visible_blocks(forward.query_tokens, forward.key_tokens,
                                                                   batch, sequence, sequence, window)) *
                        2.0 * static_cast<double>(attention_block * attention_block * size);
  const double peak = Yardstick::flops() / median(products) * 1e-9;
  fmt::print("fp32 product          {:8.1f} GFLOP/s\n", peak);
  const auto report = [&](const char* name, double time, double count) {
    fmt::print(
        "{:8} {:9.3f} ms {:8.1f} GFLOP/s visible ({:.3f} of the product), {:8.1f} of blocks ({:.3f})\n", name,
        time * 1e3, visible * count / time * 1e-9, visible * count / time * 1e-9 / peak,
        blocks * count / time * 1e-9, blocks * count / time * 1e-9 / peak);
  };
  report("forward", median(forwards), 2);
  report("backward", median(backwards), 5);
  report("both", median(forwards) + median(backwards), 7);
  fmt::print("workspace {} + {} bytes\n", forward_space.size, backward_space.size);
}

}  // namespace

int main(int count, char** values) {
  Arguments arguments;
  BenchmarkOptions options("Times attention, forward and backward.");
  options.number("--sequence", arguments.sequence, 1, 1 << 24, "tokens of a sample");
  options.number("--batch", arguments.batch, 1, 1 << 20, "samples");
  options.number("--heads", arguments.heads, 1, 1 << 16, "of queries");
  options.number("--key-heads", arguments.key_heads, 0, 1 << 16,
                 "of keys and values; 0: as many as of queries");
  options.number("--size", arguments.size, 1, 256, "of a head");
  options.number("--window", arguments.window, 0, 1 << 24, "attention window; 0: full");
  options.number("--threads", arguments.threads, 1, 1 << 16, "that share the work");
  options.number("--rounds", arguments.rounds, 1, 1 << 20, "the median of so many");
  options.number("--dropout", arguments.dropout, 0, 0.99, "probability");
  options.text("--type", arguments.type, "of what is read and written", {"fp32", "bf16", "fp16"});
  options.text("--arithmetic", arguments.arithmetic, "of bf16", {"automatic", "convert", "dot"});
  return options.run(count, values, [&] { bench(arguments); });
}
