// The key-value cache on the CPU: writing to it, and attention of new tokens to what it holds.
//
// Called by the kernel table's adapters. A cache is [rows, key heads, slots, head size]; a token at position
// p of a sequence has slot p % slots of its row, so that a window's cache is a ring. Types: fp32, bf16, fp16;
// keys, values and cache have one type. Scores and sums in fp32. Few tokens a sample are computed each by
// itself, in an order that depends on the number of keys it sees and on its slots; many by
// prompt_attention.h. Neither depends on the batch or on the team. Thread safety: pure functions of their
// operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

struct CacheLayout {
  int64_t rows = 0, heads = 0, slots = 0, head_size = 0;
  int64_t elements_of(int64_t row, int64_t head) const { return (row * heads + head) * slots * head_size; }
};

// New tokens: samples of `tokens` each, of which the first lengths[sample] count.
struct CacheTokens {
  int64_t samples = 0, tokens = 0;
  const int32_t* positions = nullptr;   // [samples, tokens]
  const int32_t* lengths = nullptr;     // [samples]
  const int32_t* cache_rows = nullptr;  // [samples]
};

struct CacheWrite {
  CacheLayout layout;
  CacheTokens tokens;
  ConstRows k, v;  // one row a token: heads side by side
  std::byte *key_cache = nullptr, *value_cache = nullptr;
};
void cache_write(ThreadTeam& team, const CacheWrite& arguments);

struct CachedAttention {
  CacheLayout layout;
  CacheTokens tokens;
  int64_t query_heads = 0;
  double scale = 1;
  int64_t window = 0;  // keys visible to a query, itself included; 0: all before it
  ConstRows q;
  const std::byte *key_cache = nullptr, *value_cache = nullptr;
  DType cache_type = DType::fp32;
  Rows out;
};
int64_t cached_attention_workspace_bytes(const CacheLayout& layout, int64_t tokens, int64_t query_heads,
                                         double scale, int threads);
void cached_attention(ThreadTeam& team, const CachedAttention& arguments, std::byte* workspace);

}  // namespace athanor::cpu
