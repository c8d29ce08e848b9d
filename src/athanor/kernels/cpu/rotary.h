// Rotary position embedding (Su et al. 2021) on the CPU, with the frequency scaling of Llama 3.1.
//
// Called by the kernel table's adapters. Thread safety: pure functions of their operands; bits do not depend
// on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// Elements i and i + E/2 of a head turn together by the angle position * frequency(i), frequency(i) =
// theta^(-2i/E). With factor != 1, wavelengths above original / low_frequency are stretched by `factor`,
// those below original / high_frequency kept, those between interpolated (Grattafiori et al. 2024).
struct RotaryOptions {
  double theta = 10000;
  double factor = 1, low_frequency = 1, high_frequency = 4;
  int64_t original_positions = 8192;
  bool inverse = false;  // turn back: the gradient
};

// frequencies[0 .. head_features/2), radians per position.
void rotary_frequencies(const RotaryOptions& options, int64_t head_features, double* frequencies);

// Token t has `heads` contiguous heads of `head_features` elements (the last of an odd number stays) and
// position positions[t]. Types fp32, bf16, fp16; y may be the memory of x. Angles are reduced in fp64, so
// positions up to 10^6 keep the full accuracy of fp32.
struct Rotary {
  int64_t tokens = 0, heads = 1, head_features = 0;
  ConstRows x{};
  Rows y{};
  const int32_t* positions = nullptr;
  RotaryOptions options{};
};
int64_t rotary_workspace_bytes(int64_t heads, int64_t head_features, int threads);
void rotary(ThreadTeam& team, const Rotary& arguments, std::byte* workspace);

}  // namespace athanor::cpu
