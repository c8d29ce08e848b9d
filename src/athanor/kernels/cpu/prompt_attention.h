// Attention of a part of a prompt to the key-value cache: many queries of a sequence at once, by the tiled
// attention of attention.h.
//
// Called by cached_attention.cpp. What it is given and what it writes are those of `cached_attention`, which
// computes few queries one by one. Thread safety: pure functions of their operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "athanor/kernels/cpu/cached_attention.h"

namespace athanor::cpu {

// Whether so many tokens a sample are worth it, and their heads such as it takes. Says the same for all
// batches and teams.
bool takes_prompt_attention(int64_t tokens, int64_t head_size, double scale);

int64_t prompt_attention_workspace_bytes(const CacheLayout& layout, int64_t tokens, int64_t query_heads,
                                         int threads);
void prompt_attention(ThreadTeam& team, const CachedAttention& arguments, std::byte* workspace);

}  // namespace athanor::cpu
