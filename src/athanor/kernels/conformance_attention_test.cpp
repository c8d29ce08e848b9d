// Cases of attention, rotary positions and dropout: what depends on the coordinates of tokens.
#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

using enum OperationKind;

// The batch tensors of B samples of S tokens.
struct Coordinates {
  Tensor positions, documents, indices, samples;
};

// `documents`: how many a sample holds, cut at uneven places; positions restart in each. Indices run through.
Coordinates make_coordinates(int64_t B, int64_t S, int64_t documents) {
  Coordinates c{Tensor(DType::int32, {B, S}), Tensor(DType::int32, {B, S}), Tensor(DType::int32, {B, S}),
                Tensor(DType::int64, {B})};
  for (int64_t b = 0; b < B; ++b) {
    c.samples.set(b, 1e11 + static_cast<double>(b));
    int64_t start = 0, document = 0;
    for (int64_t s = 0; s < S; ++s) {
      if (document + 1 < documents && s >= (document + 1) * S / documents + b) {
        ++document;
        start = s;
      }
      c.positions.set(b * S + s, static_cast<double>(s - start));
      c.documents.set(b * S + s, static_cast<double>(document));
      c.indices.set(b * S + s, static_cast<double>(s));
    }
  }
  return c;
}

struct AttentionSize {
  int64_t B, S, heads, key_heads, width;
  int64_t window = 0, documents = 1;
  double probability = 0;
  int64_t padding = 0;
  int64_t first_head = 0;
};

const std::vector<AttentionSize> attention_sizes = {{1, 0, 2, 1, 16},
                                                    {1, 1, 1, 1, 16},
                                                    {1, 7, 2, 2, 33, 0, 2, 0, 5},
                                                    {2, 33, 3, 1, 7, 5, 1},
                                                    {1, 33, 4, 2, 64, 0, 3, 0.25, 16, 6},
                                                    {2, 130, 2, 1, 32, 0, 1},
                                                    {1, 130, 4, 4, 64, 64, 2, 0.1},
                                                    {1, 65, 2, 1, 128, 0, 1, 0, 8},
                                                    {1, 67, 1, 1, 256, 33, 4},
                                                    {1, 257, 2, 2, 16, 100, 1, 0, 3}};

std::string describe(const AttentionSize& a) {
  return fmt::format("[{},{},{}/{},{}] window {} documents {} dropout {}", a.B, a.S, a.heads, a.key_heads,
                     a.width, a.window, a.documents, a.probability);
}

// The forward call; its outputs feed the gradient's.
Call attention_call(CaseBuilder& cases, const AttentionSize& a) {
  const TypeProfile& t = cases.types();
  const Shape query{a.B, a.S, a.heads, a.width}, key{a.B, a.S, a.key_heads, a.width};
  const Coordinates c = make_coordinates(a.B, a.S, a.documents);
  const bool random = a.probability > 0;
  Call call;
  call.kind = attention;
  call.attributes = {.scale = 1 / std::sqrt(static_cast<double>(a.width)),
                     .probability = a.probability,
                     .window = a.window,
                     .name = random ? "block.3.attention.dropout" : ""};
  call.inputs = {cases.random(t.compute, query, a.padding, -2, 2),
                 cases.random(t.compute, key, a.padding, -2, 2),
                 cases.random(t.compute, key, a.padding),
                 c.positions,
                 c.documents,
                 random ? c.indices : Tensor(),
                 random ? c.samples : Tensor()};
  call.outputs = {Tensor(t.compute, query, a.padding), Tensor(t.wide, {a.B, a.S, a.heads})};
  call.first = a.first_head;
  call.step.seed = 11;
  call.step.step = 5;
  return call;
}

void attention_cases(CaseBuilder& cases) {
  for (const AttentionSize& a : attention_sizes) {
    const Call call = attention_call(cases, a);
    cases.add(attention, describe(a), call.inputs, call.outputs, call.attributes).first = call.first;
  }
}

void attention_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const AttentionSize& a : attention_sizes) {
    Call forward = attention_call(cases, a);
    run_reference(forward);
    const Shape query{a.B, a.S, a.heads, a.width}, key{a.B, a.S, a.key_heads, a.width};
    std::vector<Tensor> inputs{cases.random(t.compute, query, a.padding),
                               forward.inputs[0],
                               forward.inputs[1],
                               forward.inputs[2],
                               forward.outputs[0],
                               forward.outputs[1]};
    inputs.insert(inputs.end(), forward.inputs.begin() + 3, forward.inputs.end());
    const Tensor dkey = cases.output(t.compute, key, a.padding);
    cases
        .add(attention_gradient, describe(a), inputs, {cases.output(t.compute, query, a.padding), dkey, dkey},
             forward.attributes, 1)
        .first = forward.first;
  }
}

// Parts of a ring: rank `mine` of `ranks` has queries of pieces mine and 2 ranks - 1 - mine, and meets the
// keys of rank `theirs` after those of rank `earlier`.
struct PartSize {
  int64_t B, piece, ranks, mine, theirs, earlier;
  AttentionSize size;  // but for the tokens
};

const std::vector<PartSize> part_sizes = {
    {1, 0, 2, 0, 1, 0, {0, 0, 2, 1, 16}},
    {1, 1, 2, 1, 0, 1, {0, 0, 2, 2, 7, 0, 2}},
    {2, 7, 3, 1, 2, 0, {0, 0, 3, 1, 33, 0, 3, 0.25, 5, 9}},
    {1, 33, 2, 0, 0, 1, {0, 0, 4, 2, 64, 0, 1, 0, 16}},
    {2, 33, 2, 1, 0, 1, {0, 0, 2, 1, 24, 20, 2, 0.1}},
    {1, 65, 2, 0, 1, 0, {0, 0, 2, 2, 16, 5}},  // little or nothing is visible
    {2, 70, 2, 1, 1, 0, {0, 0, 20, 20, 3}},    // gradients of keys in one chunk
    {1, 128, 1, 0, 0, 0, {0, 0, 1, 1, 40, 0, 4, 0, 3}},
};

// The batch tensors of the tokens of rank `rank`, of 2 ranks pieces.
Coordinates coordinates_of(const PartSize& p, int64_t rank) {
  const int64_t whole = 2 * p.ranks * p.piece;
  const Coordinates all = make_coordinates(p.B, whole, p.size.documents);
  const Shape tokens{p.B, 2 * p.piece};
  Coordinates c{Tensor(DType::int32, tokens), Tensor(DType::int32, tokens), Tensor(DType::int32, tokens),
                all.samples};
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t i = 0; i < 2 * p.piece; ++i) {
      const int64_t global =
          i < p.piece ? rank * p.piece + i : (2 * p.ranks - 1 - rank) * p.piece + i - p.piece;
      const int64_t from = b * whole + global, to = b * 2 * p.piece + i;
      c.positions.set(to, all.positions.get(from));
      c.documents.set(to, all.documents.get(from));
      c.indices.set(to, all.indices.get(from));
    }
  }
  return c;
}

// Queries of `mine` to the keys of rank `rank`, merged with what the call `before` gave.
Call part_call(CaseBuilder& cases, const PartSize& p, int64_t rank, const Call* before) {
  const TypeProfile& t = cases.types();
  const AttentionSize& a = p.size;
  const Shape query{p.B, 2 * p.piece, a.heads, a.width}, key{p.B, 2 * p.piece, a.key_heads, a.width};
  const Coordinates queries = coordinates_of(p, p.mine), keys = coordinates_of(p, rank);
  const bool random = a.probability > 0;
  Call call;
  call.kind = attention_part;
  call.attributes = {.scale = 1 / std::sqrt(static_cast<double>(a.width)),
                     .probability = a.probability,
                     .window = a.window,
                     .ranks = static_cast<int32_t>(p.ranks),
                     .extent = random ? 3 * (a.heads + a.first_head) : 0,
                     .name = random ? "block.3.attention.dropout" : ""};
  call.inputs = {before != nullptr ? before->inputs[0] : cases.random(t.compute, query, a.padding, -2, 2),
                 cases.random(t.compute, key, a.padding, -2, 2),
                 cases.random(t.compute, key, a.padding),
                 queries.positions,
                 queries.documents,
                 keys.positions,
                 keys.documents,
                 before != nullptr ? before->outputs[0] : Tensor(),
                 before != nullptr ? before->outputs[1] : Tensor(),
                 random ? queries.indices : Tensor(),
                 random ? keys.indices : Tensor(),
                 random ? queries.samples : Tensor()};
  call.outputs = {Tensor(t.wide, query), Tensor(t.wide, {p.B, 2 * p.piece, a.heads})};
  call.first = a.first_head;
  call.step.seed = 11;
  call.step.step = 5;
  return call;
}

std::string describe(const PartSize& p) {
  return fmt::format("rank {} of {} meets {} after {}, pieces of {}, {}", p.mine, p.ranks, p.theirs,
                     p.earlier, p.piece, describe(p.size));
}

void attention_part_cases(CaseBuilder& cases) {
  for (const PartSize& p : part_sizes) {
    Call earlier = part_call(cases, p, p.earlier, nullptr);
    const auto one = [&](const std::string& what, const Call& call, const Tensor& out) {
      cases.add(attention_part, describe(p) + what, call.inputs, {out, call.outputs[1]}, call.attributes)
          .first = call.first;
    };
    one(", the first part", earlier, earlier.outputs[0]);
    run_reference(earlier);
    const Call next = part_call(cases, p, p.theirs, &earlier);
    one(", a later part", next, next.outputs[0]);
    one(", the last part", next, cases.output(cases.types().compute, next.inputs[0].shape, p.size.padding));
  }
}

void attention_part_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const PartSize& p : part_sizes) {
    Call earlier = part_call(cases, p, p.earlier, nullptr);
    run_reference(earlier);
    Call whole = part_call(cases, p, p.theirs, &earlier);
    whole.outputs[0] = Tensor(t.compute, whole.inputs[0].shape, p.size.padding);
    run_reference(whole);
    const Shape &query = whole.inputs[0].shape, &key = whole.inputs[1].shape;
    const Tensor dout = cases.random(t.compute, query, p.size.padding);
    for (const bool first : {true, false}) {
      std::vector<Tensor> inputs{dout,
                                 whole.inputs[0],
                                 whole.inputs[1],
                                 whole.inputs[2],
                                 whole.outputs[0],
                                 whole.outputs[1],
                                 whole.inputs[3],
                                 whole.inputs[4],
                                 whole.inputs[5],
                                 whole.inputs[6],
                                 first ? Tensor() : cases.random(t.wide, query),
                                 first ? Tensor() : cases.random(t.wide, key, 3),
                                 first ? Tensor() : cases.random(t.wide, key)};
      inputs.insert(inputs.end(), whole.inputs.begin() + 9, whole.inputs.end());
      const Tensor dq = first ? cases.output(t.wide, query) : cases.output(t.compute, query, p.size.padding);
      cases
          .add(attention_part_gradient, describe(p) + (first ? ", the first part" : ", a later part"), inputs,
               {dq, cases.output(t.wide, key), cases.output(t.wide, key, 2)}, whole.attributes, 1)
          .first = whole.first;
    }
  }
}

void rotary_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const int64_t widths[] = {2, 6, 16, 64, 66, 128};
  size_t i = 0;
  for (const auto& [B, S] : token_shapes()) {
    for (const double factor : {1.0, 8.0}) {
      for (const bool inverse : {false, true}) {
        const int64_t width = widths[i++ % 6], padding = inverse ? 4 : 0;
        const Shape shape{B, S, 3, width};
        Attributes attributes{.theta = 10000, .rope_factor = factor, .rope_original = 64, .inverse = inverse};
        const Call call = cases.add(rotary, fmt::format("[{},{},3,{}] factor {}", B, S, width, factor),
                                    {cases.random(t.compute, shape, padding), cases.integers({B, S}, 5000)},
                                    {cases.output(t.compute, shape, padding)}, attributes);
        cases.add_shared(call, 0, 0);
      }
    }
  }
}

void dropout_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const int64_t widths[] = {1, 7, 33, 130, 64};
  size_t i = 0;
  for (const auto& [B, S] : token_shapes()) {
    const int64_t width = widths[i++];
    const Shape shape{B, S, width};
    Coordinates c = make_coordinates(B, S, 1);
    for (int64_t s = 0; s < c.indices.elements(); ++s) c.indices.set(s, c.indices.get(s) + 1000);
    for (const double probability : {0.0, 0.1, 0.5}) {
      const Attributes attributes{.probability = probability, .name = "block.2.dropout"};
      const std::string what = fmt::format("[{},{},{}] probability {}", B, S, width, probability);
      const auto one = [&](DType x, const Tensor& addend, DType y, int64_t padding) {
        return cases.add(dropout, what, {cases.random(x, shape, padding), c.samples, c.indices, addend},
                         {cases.output(y, shape, padding)}, attributes);
      };
      cases.add_shared(one(t.residual, Tensor(), t.residual, 0), 0, 0);
      one(t.compute, Tensor(), t.compute, 3);
      one(t.residual, Tensor(), t.compute, 3);  // the gradient of a branch off the residual stream
      one(t.compute, cases.random(t.residual, shape, 2), t.residual, 3);
    }
  }
}

}  // namespace

bool add_attention_cases(OperationKind kind, CaseBuilder& cases) {
  switch (kind) {
    case attention:
      attention_cases(cases);
      return true;
    case attention_gradient:
      attention_gradient_cases(cases);
      return true;
    case attention_part:
      attention_part_cases(cases);
      return true;
    case attention_part_gradient:
      attention_part_gradient_cases(cases);
      return true;
    case rotary:
      rotary_cases(cases);
      return true;
    case dropout:
      dropout_cases(cases);
      return true;
    default:
      return false;
  }
}

}  // namespace athanor::testing
