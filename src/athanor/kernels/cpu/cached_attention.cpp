#include "athanor/kernels/cpu/cached_attention.h"

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/prompt_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/cached_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE Float load_wide(const float* from) {
  return hn::LoadU(FloatTag(), from);
}
HWY_INLINE Float load_wide(const BFloat16* from) {
  const hn::Rebind<uint16_t, FloatTag> halves;
  return float_from_bfloat16(hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from)));
}
HWY_INLINE Float load_wide(const Float16* from) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  const hn::Rebind<uint16_t, FloatTag> halves;
  const hn::Rebind<hwy::float16_t, FloatTag> float16s;
  return hn::PromoteTo(FloatTag(),
                       hn::BitCast(float16s, hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from))));
#else
  HWY_ALIGN float lanes[static_cast<size_t>(float_lanes)];
  for (int64_t i = 0; i < float_lanes; ++i) lanes[i] = static_cast<float>(from[i]);
  return hn::Load(FloatTag(), lanes);
#endif
}
template <class T>
HWY_INLINE Float load_wide(const T* from, Whole) {
  return load_wide(from);
}
template <class T>
HWY_INLINE Float load_wide(const T* from, Part part) {
  T lanes[static_cast<size_t>(float_lanes)] = {};
  std::memcpy(static_cast<void*>(lanes), from, static_cast<size_t>(part.count) * sizeof(T));
  return load_wide(lanes);
}

// scores[i] = query . keys[i] for `count` keys of one after another. Four at a time share what is read of the
// query.
template <class T>
void score_keys(const float* query, const T* keys, int64_t count, int64_t size, float* scores) {
  const auto sum = [](Float value) HWY_ATTR { return hn::GetLane(hn::SumOfLanes(FloatTag(), value)); };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const T* key = keys + i * size;
    Float sum0 = zero(), sum1 = zero(), sum2 = zero(), sum3 = zero();
    for_vectors(size, [&](int64_t e, auto extent) HWY_ATTR {
      const Float q = load(query + e, extent);
      sum0 = hn::MulAdd(q, load_wide(key + e, extent), sum0);
      sum1 = hn::MulAdd(q, load_wide(key + size + e, extent), sum1);
      sum2 = hn::MulAdd(q, load_wide(key + 2 * size + e, extent), sum2);
      sum3 = hn::MulAdd(q, load_wide(key + 3 * size + e, extent), sum3);
    });
    scores[i] = sum(sum0);
    scores[i + 1] = sum(sum1);
    scores[i + 2] = sum(sum2);
    scores[i + 3] = sum(sum3);
  }
  for (; i < count; ++i) {
    const T* key = keys + i * size;
    Float sum0 = zero();
    for_vectors(size, [&](int64_t e, auto extent) HWY_ATTR {
      sum0 = hn::MulAdd(load(query + e, extent), load_wide(key + e, extent), sum0);
    });
    scores[i] = sum(sum0);
  }
}

// out[e] += sum of weights[i] values[i][e], for `count` values one after another.
template <class T>
void add_values(const float* weights, const T* values, int64_t count, int64_t size, float* out) {
  int64_t e = 0;
  for (; e + 4 * float_lanes <= size; e += 4 * float_lanes) {
    Float sum0 = load(out + e, Whole{}), sum1 = load(out + e + float_lanes, Whole{});
    Float sum2 = load(out + e + 2 * float_lanes, Whole{}), sum3 = load(out + e + 3 * float_lanes, Whole{});
    for (int64_t i = 0; i < count; ++i) {
      const T* value = values + i * size + e;
      const Float weight = splat(weights[i]);
      sum0 = hn::MulAdd(weight, load_wide(value), sum0);
      sum1 = hn::MulAdd(weight, load_wide(value + float_lanes), sum1);
      sum2 = hn::MulAdd(weight, load_wide(value + 2 * float_lanes), sum2);
      sum3 = hn::MulAdd(weight, load_wide(value + 3 * float_lanes), sum3);
    }
    store(sum0, out + e, Whole{});
    store(sum1, out + e + float_lanes, Whole{});
    store(sum2, out + e + 2 * float_lanes, Whole{});
    store(sum3, out + e + 3 * float_lanes, Whole{});
  }
  for_vectors(size - e, [&](int64_t j, auto extent) HWY_ATTR {
    Float sum = load(out + e + j, extent);
    for (int64_t i = 0; i < count; ++i)
      sum = hn::MulAdd(splat(weights[i]), load_wide(values + i * size + e + j, extent), sum);
    store(sum, out + e + j, extent);
  });
}

// Scores to e^(scale (score - largest)); returns their sum.
double exponentials(float* scores, int64_t count, float scale) {
  Float largest = splat(-std::numeric_limits<float>::infinity());
  const auto lowest = splat(-std::numeric_limits<float>::infinity());
  for_vectors(
      count, [&](int64_t i, Whole extent) HWY_ATTR { largest = hn::Max(largest, load(scores + i, extent)); },
      [&](int64_t i, Part extent) HWY_ATTR {
        const auto used = hn::FirstN(FloatTag(), static_cast<size_t>(extent.count));
        largest = hn::Max(largest, hn::IfThenElse(used, load(scores + i, extent), lowest));
      });
  const Float most = hn::MaxOfLanes(FloatTag(), largest), factor = splat(scale);
  return sum_vectors(count, [&](int64_t i, auto extent) HWY_ATTR {
    const Float value = exponential(hn::Mul(factor, hn::Sub(load(scores + i, extent), most)));
    store(value, scores + i, extent);
    return only(value, extent);
  });
}

// One query head. The keys lie in at most two pieces of the ring. `scores` has room for all slots.
template <class T>
void attend(const float* query, const T* keys, const T* values, const CacheLayout& layout, int64_t first,
            int64_t last, float scale, float* scores, float* out) {
  const int64_t size = layout.head_size, count = last - first + 1, begin = first % layout.slots;
  const int64_t before = std::min(count, layout.slots - begin);
  score_keys(query, keys + begin * size, before, size, scores);
  score_keys(query, keys, count - before, size, scores + before);
  const double sum = exponentials(scores, count, scale);
  std::fill_n(out, size, 0.0F);
  add_values(scores, values + begin * size, before, size, out);
  add_values(scores + before, values, count - before, size, out);
  const Float factor = splat(static_cast<float>(1 / sum));
  for_vectors(size, [&](int64_t e, auto extent)
                        HWY_ATTR { store(hn::Mul(factor, load(out + e, extent)), out + e, extent); });
}

// Query heads of one key head for one token. Scratch: query, result, scores.
void attend_token(const CachedAttention& a, int64_t token, int64_t key_head, float* scratch) {
  const int64_t sample = token / a.tokens.tokens, size = a.layout.head_size;
  const int64_t group = a.query_heads / a.layout.heads, padded = align_floats(size);
  float *query = scratch, *out = scratch + padded, *scores = scratch + 2 * padded;
  const bool counts = token % a.tokens.tokens < a.tokens.lengths[sample];
  const int64_t position = a.tokens.positions[token];
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
  const int64_t cache = a.layout.elements_of(a.tokens.cache_rows[sample], key_head);
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    std::fill_n(out, size, 0.0F);
    if (counts) {
      const ConstSpan q = a.q.at(token, head * size);
      for (int64_t e = 0; e < size; e += chunk_elements) {
        const int64_t count = std::min(chunk_elements, size - e);
        const float* wide =
            widen(q.data + e * static_cast<int64_t>(size_of(q.dtype)), q.dtype, count, query + e);
        if (wide != query + e) std::memcpy(query + e, wide, static_cast<size_t>(count) * sizeof(float));
      }
      const auto run = [&](const auto* keys, const auto* values) {
        attend(query, keys + cache, values + cache, a.layout, first, position, static_cast<float>(a.scale),
               scores, out);
      };
      switch (a.cache_type) {
        case DType::fp32:
          run(reinterpret_cast<const float*>(a.key_cache), reinterpret_cast<const float*>(a.value_cache));
          break;
        case DType::bf16:
          run(reinterpret_cast<const BFloat16*>(a.key_cache),
              reinterpret_cast<const BFloat16*>(a.value_cache));
          break;
        case DType::fp16:
          run(reinterpret_cast<const Float16*>(a.key_cache), reinterpret_cast<const Float16*>(a.value_cache));
          break;
        default:
          unsupported_type(a.cache_type);
      }
    }
    const Span to = a.out.at(token, head * size);
    narrow(out, to.data, to.dtype, size);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(attend_token);

namespace {

void check_tokens(const CacheLayout& layout, const CacheTokens& tokens, int64_t window) {
  for (int64_t sample = 0; sample < tokens.samples; ++sample) {
    const int64_t length = tokens.lengths[sample], row = tokens.cache_rows[sample];
    ATHANOR_ASSERT(length >= 0 && length <= tokens.tokens && row >= 0 && row < layout.rows,
                   "sample {} has {} tokens of {}, row {} of {}", sample, length, tokens.tokens, row,
                   layout.rows);
    for (int64_t s = 0; s < length; ++s) {
      const int64_t position = tokens.positions[sample * tokens.tokens + s];
      const int64_t seen = window > 0 ? std::min(window, position + 1) : position + 1;
      ATHANOR_ASSERT(position >= 0 && seen <= layout.slots, "position {} sees more than the {} slots",
                     position, layout.slots);
    }
  }
}

}  // namespace

void cache_write(ThreadTeam& team, const CacheWrite& a) {
  check_tokens(a.layout, a.tokens, 1);
  const int64_t count = a.tokens.samples * a.tokens.tokens;
  const auto bytes = static_cast<int64_t>(size_of(a.k.dtype)), head_bytes = a.layout.head_size * bytes;
  const int64_t tile = tokens_per_tile(a.layout.heads * a.layout.head_size);
  team.parallel_for(ceil_divide(count, tile), [&](int64_t index, int) {
    for (int64_t token = index * tile; token < std::min(count, (index + 1) * tile); ++token) {
      const int64_t sample = token / a.tokens.tokens;
      if (token % a.tokens.tokens >= a.tokens.lengths[sample]) continue;
      const int64_t slot = a.tokens.positions[token] % a.layout.slots;
      for (int64_t head = 0; head < a.layout.heads; ++head) {
        const int64_t to =
            a.layout.elements_of(a.tokens.cache_rows[sample], head) + slot * a.layout.head_size;
        const int64_t from = head * a.layout.head_size;
        std::memcpy(a.key_cache + to * bytes, a.k.at(token, from).data, static_cast<size_t>(head_bytes));
        std::memcpy(a.value_cache + to * bytes, a.v.at(token, from).data, static_cast<size_t>(head_bytes));
      }
    }
  });
}

namespace {

int64_t scratch_floats(const CacheLayout& layout) {
  return 2 * align_floats(layout.head_size) + align_floats(layout.slots);
}

}  // namespace

int64_t cached_attention_workspace_bytes(const CacheLayout& layout, int64_t tokens, int64_t query_heads,
                                         double scale, int threads) {
  if (takes_prompt_attention(tokens, layout.head_size, scale))
    return prompt_attention_workspace_bytes(layout, tokens, query_heads, threads);
  return threads * scratch_floats(layout) * static_cast<int64_t>(sizeof(float));
}

void cached_attention(ThreadTeam& team, const CachedAttention& a, std::byte* workspace) {
  check_tokens(a.layout, a.tokens, a.window);
  if (takes_prompt_attention(a.tokens.tokens, a.layout.head_size, a.scale))
    return prompt_attention(team, a, workspace);
  constexpr int64_t tokens_at_once = 8;  // so that they find the keys in the second cache
  const int64_t count = a.tokens.samples * a.tokens.tokens, blocks = ceil_divide(count, tokens_at_once);
  auto* const scratch = reinterpret_cast<float*>(workspace);
  const int64_t floats = scratch_floats(a.layout);
  team.parallel_for(blocks * a.layout.heads, [&](int64_t tile, int thread) {
    const int64_t first = tile / a.layout.heads * tokens_at_once;
    for (int64_t token = first; token < std::min(count, first + tokens_at_once); ++token)
      HWY_DYNAMIC_DISPATCH(attend_token)(a, token, tile % a.layout.heads, scratch + thread * floats);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
