#include "athanor/kernels/cpu/prompt_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "athanor/kernels/cpu/attention.h"
#include "athanor/kernels/cpu/attention_plan.h"

namespace athanor::cpu {
namespace {

// Documents are what hides slots that hold no token, and queries that do not count.
constexpr int32_t sequence = 0, no_key = 1, no_query = 2;

// One sample. Its key heads stand as samples of attention, each with the query heads that read it, because
// there the keys of the cache lie as a sample's do.
AttentionShape shape_of(const CacheLayout& layout, int64_t tokens, int64_t query_heads) {
  return {.batch = layout.heads,
          .query_length = tokens,
          .key_length = layout.slots,
          .query_heads = query_heads / layout.heads,
          .key_heads = 1,
          .head_size = layout.head_size};
}

struct Pieces {
  int32_t *query_positions, *query_documents;  // [key heads, tokens]
  int32_t *key_positions, *key_documents;      // [key heads, slots]
  std::byte *q, *out;                          // [key heads, tokens, heads of each, E]
  float* logsumexp;                            // [key heads, tokens, heads of each], not used further
  std::byte* attention;

  Pieces(Carver& carver, const CacheLayout& layout, int64_t tokens, int64_t query_heads, int threads) {
    const int64_t queries = layout.heads * tokens, keys = layout.heads * layout.slots;
    constexpr int64_t widest = sizeof(float);
    query_positions = carver.take<int32_t>(queries);
    query_documents = carver.take<int32_t>(queries);
    key_positions = carver.take<int32_t>(keys);
    key_documents = carver.take<int32_t>(keys);
    q = carver.take<std::byte>(tokens * query_heads * layout.head_size * widest);
    out = carver.take<std::byte>(tokens * query_heads * layout.head_size * widest);
    logsumexp = carver.take<float>(tokens * query_heads);
    attention = carver.take<std::byte>(attention_workspace_bytes(shape_of(layout, tokens, query_heads),
                                                                 AttentionDirection::forward, threads));
  }
};

// Positions and documents, the same for every key head.
void describe_tokens(const CachedAttention& a, int64_t sample, const Pieces& pieces) {
  const int64_t tokens = a.tokens.tokens, length = a.tokens.lengths[sample], slots = a.layout.slots;
  const int32_t* positions = a.tokens.positions + sample * tokens;
  const int64_t last = length > 0 ? *std::max_element(positions, positions + length) : -1;
  for (int64_t head = 0; head < a.layout.heads; ++head) {
    for (int64_t s = 0; s < tokens; ++s) {
      const bool counts = s < length;
      pieces.query_positions[head * tokens + s] = counts ? positions[s] : 0;
      pieces.query_documents[head * tokens + s] = counts ? sequence : no_query;
    }
    for (int64_t slot = 0; slot < slots; ++slot) {
      // The newest token that belongs into the slot.
      const int64_t position = last < slot ? -1 : last - (last - slot) % slots;
      pieces.key_positions[head * slots + slot] = static_cast<int32_t>(std::max<int64_t>(position, 0));
      pieces.key_documents[head * slots + slot] = position < 0 ? no_key : sequence;
    }
  }
}

}  // namespace

bool takes_prompt_attention(int64_t tokens, int64_t head_size, double scale) {
  constexpr int64_t worthwhile = 16;
  return tokens >= worthwhile && head_size <= 256 && scale > 0 && std::isfinite(static_cast<float>(scale));
}

int64_t prompt_attention_workspace_bytes(const CacheLayout& layout, int64_t tokens, int64_t query_heads,
                                         int threads) {
  Carver carver(nullptr);
  const Pieces pieces(carver, layout, tokens, query_heads, threads);
  return carver.used();
}

void prompt_attention(ThreadTeam& team, const CachedAttention& a, std::byte* workspace) {
  const CacheLayout& layout = a.layout;
  const int64_t tokens = a.tokens.tokens, width = a.query_heads / layout.heads * layout.head_size;
  Carver carver(workspace);
  const Pieces pieces(carver, layout, tokens, a.query_heads, team.size());
  const auto q_bytes = static_cast<size_t>(width) * size_of(a.q.dtype);
  const auto out_bytes = static_cast<size_t>(width) * size_of(a.out.dtype);
  const AttentionShape shape = shape_of(layout, tokens, a.query_heads);
  const AttentionTokens queries{pieces.query_positions, pieces.query_documents},
      keys{pieces.key_positions, pieces.key_documents};
  for (int64_t sample = 0; sample < a.tokens.samples; ++sample) {
    describe_tokens(a, sample, pieces);
    const int64_t first = sample * tokens;
    // visit(head, token, row of it among the head's)
    const auto for_rows = [&](const auto& visit) {
      team.parallel_for(layout.heads, [&](int64_t head, int) {
        for (int64_t s = 0; s < tokens; ++s) visit(head, s, static_cast<size_t>(head * tokens + s));
      });
    };
    for_rows([&](int64_t head, int64_t s, size_t row) {
      std::memcpy(pieces.q + row * q_bytes, a.q.at(first + s, head * width).data, q_bytes);
    });
    const auto cache = static_cast<size_t>(layout.elements_of(a.tokens.cache_rows[sample], 0));
    const size_t begin = cache * size_of(a.cache_type);
    attention_forward({.shape = shape,
                       .options = {.scale = a.scale, .window = a.window, .dropout = {}},
                       .query_tokens = queries,
                       .key_tokens = keys,
                       .q = {pieces.q, a.q.dtype, width},
                       .k = {a.key_cache + begin, a.cache_type, layout.head_size},
                       .v = {a.value_cache + begin, a.cache_type, layout.head_size},
                       .out = {pieces.out, a.out.dtype, width},
                       .logsumexp = rows_of(pieces.logsumexp, shape.query_heads)},
                      team, pieces.attention);
    for_rows([&](int64_t head, int64_t s, size_t row) {
      std::memcpy(a.out.at(first + s, head * width).data, pieces.out + row * out_bytes, out_bytes);
    });
  }
}

}  // namespace athanor::cpu
