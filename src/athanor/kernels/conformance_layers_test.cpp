// Cases of products, norms, activations, sums, casts and embeddings.
#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

using enum OperationKind;

std::string describe(int64_t B, int64_t S, int64_t width, int64_t padding) {
  return fmt::format("[{},{},{}] rows apart by {} more", B, S, width, padding);
}

// Calls body(B, S, width, padding) over token counts and widths; every width and both paddings come up.
template <class Body>
void over_tokens(Body body) {
  const int64_t widths[] = {7, 1, 130, 33, 65};
  size_t i = 0;
  for (const auto& [B, S] : token_shapes()) {
    body(B, S, widths[i % 5], int64_t{0});
    body(B, S, widths[(i + 3) % 5], int64_t{3});
    ++i;
  }
}

// Where a rank's rows of a table of 50 begin, and how many are stored: the last ones are padding.
constexpr std::pair<int64_t, int64_t> table_parts[] = {{0, 17}, {17, 17}, {34, 17}, {51, 17}};

void embedding_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const auto one = [&](int64_t B, int64_t S, int64_t width, int64_t vocabulary, int64_t padding) {
    const Tensor ids = cases.integers({B, S}, vocabulary);
    cases.add(embedding, fmt::format("{} of {}", describe(B, S, width, padding), vocabulary),
              {cases.random(t.compute, {vocabulary, width}), ids},
              {cases.output(t.residual, {B, S, width}, padding)});
  };
  over_tokens(
      [&](int64_t B, int64_t S, int64_t width, int64_t padding) { one(B, S, width, S + 1, padding); });
  one(1, 7, 5, 50257, 0);
  for (const auto& [first, rows] : table_parts) {
    Call& call = cases.add(embedding, fmt::format("{} rows from {} of 50", rows, first),
                           {cases.random(t.compute, {rows, 33}), cases.integers({2, 65}, 50)},
                           {cases.output(t.residual, {2, 65, 33}, 3)}, {.extent = 50});
    call.first = first;
  }
}

void embedding_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const auto one = [&](int64_t B, int64_t S, int64_t width, int64_t vocabulary, int64_t padding) {
    cases.add_accumulating(
        embedding_gradient, fmt::format("{} of {}", describe(B, S, width, padding), vocabulary),
        {cases.random(t.residual, {B, S, width}, padding), cases.integers({B, S}, vocabulary)},
        {cases.output(t.wide, {vocabulary, width})});
  };
  over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) { one(B, S, width, 9, padding); });
  one(1, 33, 3, 50257, 0);
  for (const auto& [first, rows] : table_parts) {
    for (const bool accumulate : {false, true}) {
      const Tensor dtable = accumulate ? cases.random(t.wide, {rows, 33}) : cases.output(t.wide, {rows, 33});
      Call& call = cases.add(embedding_gradient, fmt::format("{} rows from {} of 50", rows, first),
                             {cases.random(t.residual, {2, 65, 33}, 3), cases.integers({2, 65}, 50)},
                             {dtable}, {.extent = 50});
      call.first = first;
      call.accumulate = accumulate;
    }
  }
}

struct ProductSize {
  int64_t B, S, out, in;
  bool once = false;  // large: one case is enough
};
// Odd in every dim, with a vocabulary on either side, and with sizes around those of tiles.
const std::vector<ProductSize> product_sizes = {
    {1, 0, 7, 33},          {1, 1, 1, 1},      {1, 1, 7, 130},        {1, 7, 33, 7},
    {3, 11, 130, 33},       {2, 65, 7, 130},   {2, 65, 33, 1},        {1, 3, 50257, 2, true},
    {1, 2, 3, 50257, true}, {1, 257, 65, 129}, {2, 64, 256, 64, true}};

std::string describe(const ProductSize& p) {
  return fmt::format("[{},{},{}] from {}", p.B, p.S, p.out, p.in);
}

void matmul_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const ProductSize& p : product_sizes) {
    for (const bool full : {false, true}) {  // without and with bias, activation and gaps between rows
      const int64_t padding = full ? 5 : 0;
      const Tensor x = cases.random(t.compute, {p.B, p.S, p.in}, padding),
                   weight = cases.random(t.compute, {p.out, p.in});
      const Tensor bias = cases.random(t.compute, {p.out});
      const Tensor y = cases.output(t.compute, {p.B, p.S, p.out}, padding);
      cases.add(matmul, describe(p) + (full ? ", apart" : ""), {x, weight, full ? bias : Tensor()},
                {y, Tensor()});
      cases.add(matmul, describe(p) + ", activation", {x, weight, full ? Tensor() : bias}, {y, y},
                {.activation = Activation::gelu});
      if (p.once) break;
      if (t.compute == t.wide) continue;
      cases.add(matmul, describe(p) + ", wide result", {x, weight, Tensor()},
                {cases.output(t.wide, {p.B, p.S, p.out}, padding), Tensor()});
    }
  }
  for (const int64_t tokens : {1, 65}) {  // of a product that is cut in depth, the first part adds the bias
    for (const int64_t first : {0, 33, 66}) {
      Call& call = cases.add(matmul, fmt::format("[2,{},7] from 33 behind {} of 80", tokens, first),
                             {cases.random(t.compute, {2, tokens, 33}), cases.random(t.compute, {7, 33}),
                              cases.random(t.compute, {7})},
                             {cases.output(t.compute, {2, tokens, 7}), Tensor()}, {.extent = 80});
      call.first = first;
    }
  }
}

void matmul_input_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const ProductSize& p : product_sizes) {
    for (const int64_t padding : {0, 6}) {
      const Tensor dy = cases.random(t.compute, {p.B, p.S, p.out}, padding),
                   weight = cases.random(t.compute, {p.out, p.in});
      const Tensor addend = cases.random(t.compute, {p.B, p.S, p.in}, padding);
      const Tensor dx = cases.output(t.compute, {p.B, p.S, p.in}, padding);
      cases.add(matmul_input_gradient, describe(p), {dy, weight, Tensor()}, {dx});
      if (p.once) break;
      cases.add(matmul_input_gradient, describe(p) + ", addend", {dy, weight, addend}, {dx});
    }
  }
}

void matmul_weight_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const ProductSize& p : product_sizes) {
    for (const int64_t padding : {0, 6}) {
      cases.add_accumulating(matmul_weight_gradient, describe(p) + fmt::format(", apart by {}", padding),
                             {cases.random(t.compute, {p.B, p.S, p.out}, padding),
                              cases.random(t.compute, {p.B, p.S, p.in}, padding / 2)},
                             {cases.output(t.wide, {p.out, p.in})});
      if (p.once) break;
    }
  }
}

void bias_gradient_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  for (const DType dtype : cases.distinct_types()) {
    over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) {
      cases.add_accumulating(bias_gradient, describe(B, S, width, padding),
                             {cases.random(dtype, {B, S, width}, padding)}, {cases.output(t.wide, {width})},
                             1);
    });
  }
  cases.add_accumulating(bias_gradient, "50257 columns", {cases.random(t.compute, {1, 3, 50257})},
                         {cases.output(t.wide, {50257})}, 1);
}

// Shapes of a norm: [B,S,D] of the residual stream, or [B,S,H,E] of query and key heads.
struct NormCase {
  Shape shape, statistic;
  int64_t padding;
  DType x;  // the residual stream, or an activation
  std::string description;
};

std::vector<NormCase> norm_shapes(const TypeProfile& types) {
  std::vector<NormCase> list;
  over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) {
    list.push_back({{B, S, width}, {B, S}, padding, types.residual, describe(B, S, width, padding)});
    list.push_back(
        {{B, S, 3, width}, {B, S, 3}, padding, types.compute, describe(B, S, width, padding) + ", 3 heads"});
  });
  return list;
}

constexpr double norm_epsilon = 1e-2;

void norm_cases(CaseBuilder& cases, bool centred) {
  const TypeProfile& t = cases.types();
  const Attributes attributes{.epsilon = norm_epsilon};
  for (const NormCase& c : norm_shapes(t)) {
    const int64_t width = c.shape[-1];
    const Tensor x = cases.random(c.x, c.shape, c.padding, -1, 2),
                 weight = cases.random(t.compute, {width}, 0, 0.5, 1.5);
    const Tensor statistic = cases.output(t.wide, c.statistic), total = cases.output(c.x, c.shape, c.padding);
    const Tensor y = cases.output(t.compute, c.shape, c.padding);
    const auto norm = [&](const std::string& what, const Tensor& bias, const Tensor& addend,
                          const Tensor& sum) -> Call& {
      if (!centred)
        return cases.add(rms_norm, c.description + what, {x, weight, addend}, {y, statistic, sum}, attributes,
                         1);
      return cases.add(layer_norm, c.description + what, {x, weight, bias, addend},
                       {y, statistic, statistic, sum}, attributes, 1);
    };
    norm(", alone", Tensor(), Tensor(), Tensor());
    norm(", bias", cases.random(t.compute, {width}), Tensor(), Tensor());
    norm(", addend", Tensor(), cases.random(t.compute, c.shape, c.padding), Tensor());
    const Call all =
        norm(", all", cases.random(t.compute, {width}), cases.random(t.compute, c.shape, 0), total);
    cases.add_shared(all, all.outputs.size() - 1, 0, 1);
  }
}

// Statistics that belong to x, from the reference kernel.
std::vector<Tensor> statistics_of(const Tensor& x, const NormCase& c, DType wide, bool centred) {
  Call forward;
  forward.kind = centred ? layer_norm : rms_norm;
  forward.attributes = {.epsilon = norm_epsilon};
  Tensor weight(wide, {x.shape[-1]});
  weight.fill("weight");
  const Tensor y(wide, c.shape), statistic(wide, c.statistic);
  forward.inputs =
      centred ? std::vector<Tensor>{x, weight, Tensor(), Tensor()} : std::vector<Tensor>{x, weight, Tensor()};
  forward.outputs = centred ? std::vector<Tensor>{y, statistic, statistic, Tensor()}
                            : std::vector<Tensor>{y, statistic, Tensor()};
  run_reference(forward);
  if (!centred) return {forward.outputs[1]};
  return {forward.outputs[1], forward.outputs[2]};
}

void norm_input_gradient_cases(CaseBuilder& cases, bool centred) {
  const TypeProfile& t = cases.types();
  for (const NormCase& c : norm_shapes(t)) {
    const Tensor x = cases.random(c.x, c.shape, c.padding, -1, 2),
                 dy = cases.random(t.compute, c.shape, c.padding);
    const Tensor residual = cases.random(c.x, c.shape, c.padding), dx = cases.output(c.x, c.shape, c.padding);
    std::vector<Tensor> inputs{dy, x, cases.random(t.compute, {c.shape[-1]}, 0, 0.5, 1.5)};
    for (Tensor& statistic : statistics_of(x, c, t.wide, centred)) inputs.push_back(std::move(statistic));
    inputs.emplace_back();
    const OperationKind kind = centred ? layer_norm_input_gradient : rms_norm_input_gradient;
    cases.add(kind, c.description, inputs, {dx}, {}, 1);
    inputs.back() = residual;
    const Call call = cases.add(kind, c.description + ", residual gradient", inputs, {dx}, {}, 1);
    cases.add_shared(call, 0, static_cast<int>(inputs.size()) - 1, 1);
  }
}

void norm_weight_gradient_cases(CaseBuilder& cases, bool centred) {
  const TypeProfile& t = cases.types();
  for (const NormCase& c : norm_shapes(t)) {
    const Tensor x = cases.random(c.x, c.shape, c.padding, -1, 2),
                 dy = cases.random(t.compute, c.shape, c.padding);
    const Tensor feature = cases.output(t.wide, {c.shape[-1]});
    std::vector<Tensor> inputs{dy, x};
    for (Tensor& statistic : statistics_of(x, c, t.wide, centred)) inputs.push_back(std::move(statistic));
    if (!centred) {
      cases.add_accumulating(rms_norm_weight_gradient, c.description, inputs, {feature}, 1);
      continue;
    }
    cases.add_accumulating(layer_norm_weight_gradient, c.description, inputs, {feature, Tensor()}, 1);
    cases.add_accumulating(layer_norm_weight_gradient, c.description + ", bias", inputs, {feature, feature},
                           1);
  }
}

void elementwise_cases(CaseBuilder& cases, OperationKind kind) {
  const TypeProfile& t = cases.types();
  over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) {
    const Shape shape{B, S, width};
    const std::string what = describe(B, S, width, padding);
    const auto random = [&](double size) { return cases.random(t.compute, shape, padding, -size, size); };
    const Tensor out = cases.output(t.compute, shape, padding);
    if (kind == gelu) cases.add(gelu, what, {random(6)}, {out});
    if (kind == gelu_gradient)
      cases.add_shared(cases.add(gelu_gradient, what, {random(1), random(6)}, {out}), 0, 0);
    if (kind == swiglu) cases.add(swiglu, what, {random(6), random(2)}, {out});
    if (kind == swiglu_gradient)
      cases.add(swiglu_gradient, what, {random(1), random(6), random(2)}, {out, out});
  });
}

void add_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) {
    const Shape shape{B, S, width};
    const std::string what = describe(B, S, width, padding);
    for (const DType second : {t.compute, t.residual}) {
      const Call call =
          cases.add(add, what, {cases.random(t.residual, shape, padding), cases.random(second, shape)},
                    {cases.output(t.residual, shape, padding)});
      cases.add_shared(call, 0, 0);
    }
    cases.add(add, what, {cases.random(t.compute, shape), cases.random(t.compute, shape, padding)},
              {cases.output(t.compute, shape)});
  });
}

void cast_cases(CaseBuilder& cases) {
  for (const DType from : cases.distinct_types()) {
    for (const DType to : cases.distinct_types()) {
      const std::string what = fmt::format("{} to {}", name_of(from), name_of(to));
      over_tokens([&](int64_t B, int64_t S, int64_t width, int64_t padding) {
        cases.add(cast, what + " " + describe(B, S, width, padding),
                  {cases.random(from, {B, S, width}, padding)}, {cases.output(to, {B, S, width}, 0)});
      });
      cases.add(cast, what + ", a bucket", {cases.random(from, {50257})}, {cases.output(to, {50257})});
    }
  }
}

}  // namespace

bool add_layer_cases(OperationKind kind, CaseBuilder& cases) {
  switch (kind) {
    case embedding:
      embedding_cases(cases);
      return true;
    case embedding_gradient:
      embedding_gradient_cases(cases);
      return true;
    case matmul:
      matmul_cases(cases);
      return true;
    case matmul_input_gradient:
      matmul_input_gradient_cases(cases);
      return true;
    case matmul_weight_gradient:
      matmul_weight_gradient_cases(cases);
      return true;
    case bias_gradient:
      bias_gradient_cases(cases);
      return true;
    case layer_norm:
      norm_cases(cases, true);
      return true;
    case rms_norm:
      norm_cases(cases, false);
      return true;
    case layer_norm_input_gradient:
      norm_input_gradient_cases(cases, true);
      return true;
    case rms_norm_input_gradient:
      norm_input_gradient_cases(cases, false);
      return true;
    case layer_norm_weight_gradient:
      norm_weight_gradient_cases(cases, true);
      return true;
    case rms_norm_weight_gradient:
      norm_weight_gradient_cases(cases, false);
      return true;
    case gelu:
    case gelu_gradient:
    case swiglu:
    case swiglu_gradient:
      elementwise_cases(cases, kind);
      return true;
    case add:
      add_cases(cases);
      return true;
    case cast:
      cast_cases(cases);
      return true;
    default:
      return false;
  }
}

}  // namespace athanor::testing
