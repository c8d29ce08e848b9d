#include "athanor/kernels/cpu/dropout.h"

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/dropout.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

using WordTag = hn::ScalableTag<uint64_t>;
using Words = hn::Vec<WordTag>;
inline constexpr int64_t word_lanes = static_cast<int64_t>(hn::MaxLanes(WordTag()));

// The product of the low 32 bits of each lane, as 64 bits.
HWY_INLINE Words multiply_low(Words a, Words b) {
#if HWY_TARGET == HWY_SCALAR
  const Words low = hn::Set(WordTag(), 0xFFFFFFFFu);
  return hn::Mul(hn::And(a, low), hn::And(b, low));
#else
  const hn::Repartition<uint32_t, WordTag> halves;
  return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
#endif
}

// random[0 .. count) = the words of the elements of one token from feature 4 * block on; writes up to
// 4 * word_lanes - 1 words more. One lane computes one Philox block; its words are kept in the low halves of
// 64-bit lanes, whose high halves hold garbage that no product reads.
HWY_INLINE void random_words(const DropoutKey& key, int64_t sample, int32_t index, int64_t block,
                             int64_t count, uint32_t* random) {
  const WordTag d;
  const Words multiplier0 = hn::Set(d, 0xD2511F53u), multiplier1 = hn::Set(d, 0xCD9E8D57u);
  const Words low = hn::Set(d, 0xFFFFFFFFu);
  const auto wide = static_cast<uint64_t>(sample);
  for (int64_t i = 0; i < count; i += 4 * word_lanes) {
    Words c0 = hn::Iota(d, static_cast<uint64_t>(block + i / 4));
    Words c1 = hn::Set(d, static_cast<uint32_t>(index));
    Words c2 = hn::Set(d, wide);
    Words c3 = hn::Set(d, wide >> 32);
    uint32_t key0 = key.key[0], key1 = key.key[1];
    for (int round = 0; round < 10; ++round) {
      const Words product0 = multiply_low(c0, multiplier0), product1 = multiply_low(c2, multiplier1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d, key0));
      c1 = product1;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d, key1));
      c3 = product0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const Words first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const Words second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    HWY_ALIGN uint64_t pairs[2 * static_cast<size_t>(word_lanes)];
    hn::StoreInterleaved2(first, second, d, pairs);
    std::memcpy(random + i, pairs, sizeof pairs);
  }
}

void dropout_tokens(const Dropout& a, int64_t begin, int64_t end) {
  const hn::RebindToUnsigned<FloatTag> words;
  HWY_ALIGN uint32_t random[static_cast<size_t>(chunk_elements + 4 * word_lanes)];
  const auto threshold = hn::Set(words, dropout_threshold(a.probability));
  const Float factor = splat(static_cast<float>(dropout_scale(a.probability)));
  const bool with_addend = a.addend.present();
  for (int64_t token = begin; token < end; ++token) {
    const int64_t sample = a.sample_ids[token / a.tokens_per_sample];
    Source x(a.x.at(token));
    Source addend(with_addend ? ConstSpan(a.addend.at(token)) : ConstSpan{});
    Sink y(a.y.at(token));
    for_chunks(a.features, [&](int64_t i, int64_t n) HWY_ATTR {
      random_words(a.key, sample, a.indices[token], i / 4, n, random);
      const float* from = x.get(i, n);
      const float* added = with_addend ? addend.get(i, n) : nullptr;
      float* to = y.get(i);
      for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
        const auto word = hn::Load(words, random + j);
        const auto dropped = hn::RebindMask(FloatTag(), hn::Lt(word, threshold));
        const Float kept = hn::IfThenZeroElse(dropped, hn::Mul(load(from + j, extent), factor));
        store(added != nullptr ? hn::Add(load(added + j, extent), kept) : kept, to + j, extent);
      });
      y.put(to, i, n);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(dropout_tokens);

static_assert(chunk_elements % 4 == 0, "a chunk begins with a whole Philox block");

void dropout(ThreadTeam& team, const Dropout& arguments) {
  ATHANOR_ASSERT(arguments.probability >= 0 && arguments.probability < 1, "dropout of {}",
                 arguments.probability);
  if (arguments.features <= 0) return;
  const int64_t tile = std::max<int64_t>(1, tile_elements / arguments.features);
  team.parallel_for(ceil_divide(arguments.tokens, tile), [&](int64_t index, int) {
    HWY_DYNAMIC_DISPATCH(dropout_tokens)
    (arguments, index * tile, std::min(arguments.tokens, (index + 1) * tile));
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
