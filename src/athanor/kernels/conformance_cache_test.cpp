// Cases of the key-value cache, and of products of one token a sample.
#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

using enum OperationKind;

struct CacheSize {
  int64_t B, S, heads, key_heads, width;  // of the new tokens
  int64_t rows, slots;
  int64_t before = 0;  // tokens that the first sample's row holds already; others hold some more
  int64_t window = 0, padding = 0;
};

// Rings that wrap within a part, rows in another order than samples, samples without tokens, and rows longer
// than a vector, a chunk and a group of keys.
const std::vector<CacheSize> cache_sizes = {
    {1, 0, 2, 1, 16, 1, 4},
    {1, 1, 1, 1, 16, 1, 1},
    {1, 1, 12, 12, 64, 2, 130, 129},
    {1, 7, 2, 2, 33, 3, 9, 2, 0, 5},
    {3, 1, 4, 2, 7, 3, 40, 30},
    {3, 5, 3, 1, 64, 4, 9, 100, 5, 3},
    {2, 4, 4, 4, 128, 2, 16, 50, 13},
    {1, 33, 8, 2, 80, 1, 33, 0},
    {1, 1, 2, 1, 256, 2, 67, 3000, 67},
    {7, 1, 2, 1, 24, 7, 21, 14},
    {1, 16, 2, 2, 2048, 1, 20, 3},
    {2, 20, 4, 2, 64, 3, 40, 50, 21},
    {1, 130, 4, 4, 64, 2, 256, 100},
    {3, 17, 2, 1, 33, 3, 50, 5, 0, 5},
    {1, 70, 6, 3, 16, 1, 75, 200, 6},
    {3, 64, 2, 2, 256, 3, 64, 0},
};

std::string describe(const CacheSize& c) {
  return fmt::format("[{},{},{}/{},{}] behind {} in {} slots, window {}", c.B, c.S, c.heads, c.key_heads,
                     c.width, c.before, c.slots, c.window);
}

// Positions, lengths and rows: of the samples the second has fewer tokens, the third none.
std::vector<Tensor> addresses(const CacheSize& c) {
  Tensor positions(DType::int32, {c.B, c.S}), lengths(DType::int32, {c.B}), rows(DType::int32, {c.B});
  for (int64_t b = 0; b < c.B; ++b) {
    const int64_t length = b == 1 ? c.S / 2 : b == 2 ? 0 : c.S;
    const int64_t begin = std::max<int64_t>(0, c.before - b);
    lengths.set(b, static_cast<double>(length));
    rows.set(b, static_cast<double>((c.rows - 1 + 2 * c.rows - b) % c.rows));
    for (int64_t s = 0; s < c.S; ++s)
      positions.set(b * c.S + s, s < length ? static_cast<double>(begin + s) : 0);
  }
  return {positions, lengths, rows};
}

void cache_write_cases(CaseBuilder& cases) {
  const DType dtype = cases.types().compute;
  for (const CacheSize& c : cache_sizes) {
    if (c.S > c.slots) continue;
    const Shape tokens{c.B, c.S, c.key_heads, c.width}, cache{c.rows, c.key_heads, c.slots, c.width};
    std::vector<Tensor> inputs{cases.random(dtype, tokens, c.padding),
                               cases.random(dtype, tokens, c.padding)};
    for (Tensor& tensor : addresses(c)) inputs.push_back(std::move(tensor));
    cases.add(cache_write, describe(c), std::move(inputs),
              {cases.random(dtype, cache), cases.random(dtype, cache)});
  }
}

void cached_attention_cases(CaseBuilder& cases) {
  const DType dtype = cases.types().compute;
  for (const CacheSize& c : cache_sizes) {
    const Shape tokens{c.B, c.S, c.heads, c.width}, cache{c.rows, c.key_heads, c.slots, c.width};
    const Attributes attributes{.scale = 1 / std::sqrt(static_cast<double>(c.width)), .window = c.window};
    std::vector<Tensor> inputs{cases.random(dtype, tokens, c.padding, -2, 2),
                               cases.random(dtype, cache, 0, -2, 2), cases.random(dtype, cache)};
    for (Tensor& tensor : addresses(c)) inputs.push_back(std::move(tensor));
    cases.add(cached_attention, describe(c), std::move(inputs), {cases.output(dtype, tokens, c.padding)},
              attributes);
  }
}

void last_token_cases(CaseBuilder& cases) {
  for (const DType dtype : cases.distinct_types()) {
    for (const CacheSize& c : cache_sizes) {
      const Tensor x = cases.random(dtype, {c.B, c.S, c.width}, c.padding);
      cases.add(last_token, describe(c), {x, addresses(c)[1]},
                {cases.output(dtype, {c.B, 1, c.width}, c.padding)});
    }
  }
}

void soft_cap_cases(CaseBuilder& cases) {
  for (const DType dtype : cases.distinct_types()) {
    for (const int64_t width : {1, 7, 130, 50257}) {
      const Shape shape{2, 1, width};
      const Call call =
          cases.add(soft_cap, fmt::format("[2,1,{}]", width), {cases.random(dtype, shape, 3, -90, 90)},
                    {cases.output(dtype, shape, 3)}, {.soft_cap = 30});
      cases.add_shared(call, 0, 0);
    }
  }
}

void load_tokens_cases(CaseBuilder& cases) {
  static const std::vector<int32_t> words = [] {
    std::vector<int32_t> list(1000);
    for (size_t i = 0; i < list.size(); ++i) list[i] = static_cast<int32_t>(i * i % 977) - 100;
    return list;
  }();
  for (const auto& [B, S] : token_shapes()) {
    Call& call = cases.add(load_tokens, fmt::format("[{},{}]", B, S), {}, {});
    for (const Shape& shape : {Shape{B, S}, Shape{B, S}, Shape{B}, Shape{B}})
      call.outputs.push_back(cases.output(DType::int32, shape));
    HostBatch batch;
    batch.token_ids = words.data();
    batch.positions = words.data() + 1;
    batch.lengths = words.data() + 2;
    batch.cache_rows = words.data() + 3;
    call.step.micro_batches = {HostBatch{}, HostBatch{}, batch};
    call.micro_batch = 2;
  }
}

// One token a sample: a kernel of its own.
void vector_product_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const std::vector<std::array<int64_t, 3>> sizes = {{0, 3, 4},  {1, 1, 1},    {1, 7, 33},    {2, 33, 130},
                                                     {3, 5, 64}, {8, 130, 97}, {1, 2500, 96}, {9, 12, 1500}};
  for (const auto& [B, N, K] : sizes) {
    for (const bool gelu : {false, true}) {
      const Shape x{B, 1, K}, y{B, 1, N};
      Attributes attributes;
      if (gelu) attributes.activation = Activation::gelu;
      const auto one = [&](DType left, DType result, const Tensor& bias, int64_t padding) {
        cases.add(matmul, fmt::format("[{},1,{}] to {}{}", B, K, N, gelu ? ", gelu" : ""),
                  {cases.random(left, x, padding), cases.random(t.compute, {N, K}), bias},
                  {cases.output(result, y, padding), gelu ? cases.output(t.compute, y) : Tensor()},
                  attributes, std::sqrt(static_cast<double>(K)));
      };
      one(t.compute, t.compute, cases.random(t.compute, {N}), 0);
      one(t.compute, t.wide, Tensor(), 5);
    }
  }
}

}  // namespace

bool add_cache_cases(OperationKind kind, CaseBuilder& cases) {
  switch (kind) {
    case cache_write:
      cache_write_cases(cases);
      return true;
    case cached_attention:
      cached_attention_cases(cases);
      return true;
    case last_token:
      last_token_cases(cases);
      return true;
    case soft_cap:
      soft_cap_cases(cases);
      return true;
    case load_tokens:
      load_tokens_cases(cases);
      return true;
    case matmul:  // and those of layers
      vector_product_cases(cases);
      return true;
    default:
      return false;
  }
}

}  // namespace athanor::testing
