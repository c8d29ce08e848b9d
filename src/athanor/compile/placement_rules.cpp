#include "athanor/compile/placement_rules.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "athanor/base/error.h"

namespace athanor {

namespace {

// The dims of the operands by letters, one letter per kind of dim: b samples, s tokens, h heads, g key/value
// heads, e head dim, c slots of a cache, d width, v vocabulary, n and k outputs and depth of a
// product, f features. An axis may cut along any of `letters`: operands that have the letter are sharded
// along it, the others are whole; an output without it holds partial sums. `h` falls away where the first
// operand has three dims.
struct RuleRow {
  OperationKind kind;
  std::string_view operands, letters;
  // The input in which the outputs are linear: sums that are still to be made over it may be made later.
  int linear = -1;
  bool adds = false;  // linear in all inputs together
};

constexpr RuleRow rule_rows[] = {
    {OperationKind::embedding, "vd,bs->bsd", "bsv"},
    {OperationKind::embedding_gradient, "bsd,bs->vd", "bsv", 0},
    {OperationKind::matmul, "bsk,nk,n->bsn,bsn", "bsnk"},
    {OperationKind::matmul_input_gradient, "bsn,nk,bsk->bsk", "bsnk", 0},
    {OperationKind::matmul_weight_gradient, "bsn,bsk->nk", "bsnk", 0},
    {OperationKind::bias_gradient, "bsn->n", "bsn", 0},
    {OperationKind::layer_norm, "bsd,d,d,bsd->bsd,bs,bs,bsd", "bs"},
    {OperationKind::layer_norm_input_gradient, "bsd,bsd,d,bs,bs,bsd->bsd", "bs"},
    {OperationKind::layer_norm_weight_gradient, "bsd,bsd,bs,bs->d,d", "bs"},
    {OperationKind::rms_norm, "bshd,d,bshd->bshd,bsh,bshd", "bsh"},
    {OperationKind::rms_norm_input_gradient, "bshd,bshd,d,bsh,bshd->bshd", "bsh", 0},
    {OperationKind::rms_norm_weight_gradient, "bshd,bshd,bsh->d", "bsh", 0},
    {OperationKind::gelu, "bsf->bsf", "bsf"},
    {OperationKind::gelu_gradient, "bsf,bsf->bsf", "bsf"},
    {OperationKind::swiglu, "bsf,bsf->bsf", "bsf"},
    {OperationKind::swiglu_gradient, "bsf,bsf,bsf->bsf,bsf", "bsf"},
    {OperationKind::rotary, "bshe,bs->bshe", "bsh", 0},
    {OperationKind::attention, "bshe,bsge,bsge,bs,bs,bs,b->bshe,bsh", "bsh"},
    {OperationKind::attention_gradient, "bshe,bshe,bsge,bsge,bshe,bsh,bs,bs,bs,b->bshe,bsge,bsge", "bsh"},
    {OperationKind::add, "bshf,bshf->bshf", "bshf", -1, true},
    {OperationKind::dropout, "bsf,b,bs,bsf->bsf", "bs"},
    // A sample's row of the cache lies where the sample is.
    {OperationKind::cache_write, "bsge,bsge,bs,b,b->bgce,bgce", "bg"},
    {OperationKind::cached_attention, "bshe,bgce,bgce,bs,b,b->bshe", "bh"},
    {OperationKind::last_token, "bsd,b->bsd", "b"},
    {OperationKind::soft_cap, "bshf->bshf", "bshf"},
    {OperationKind::cross_entropy, "bsv,bs,->bs,bsv", "bsv"},
    {OperationKind::count_valid, "bs->", "bs"},
    {OperationKind::sum, "bs->", "bs"},
};

struct Notation {
  std::vector<std::string> inputs, outputs;
};

Notation parse(std::string_view text, bool without_heads) {
  Notation notation;
  auto* side = &notation.inputs;
  side->emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      side->emplace_back();
    } else if (text[i] == '-') {
      side = &notation.outputs;
      side->emplace_back();
      ++i;  // the '>'
    } else if (text[i] != 'h' || !without_heads) {
      side->back() += text[i];
    }
  }
  return notation;
}

int dim_of(const std::string& letters, char letter) {
  const size_t at = letters.find(letter);
  return at == std::string::npos ? -1 : static_cast<int>(at);
}

Placement at_dim(Placement placement, int dim) {
  placement.dim = static_cast<uint8_t>(dim);
  return placement;
}

Placement whole_repeats(Placement placement) {
  placement.repeats_partial = false;
  return placement;
}

bool is_attention(OperationKind kind) {
  return kind == OperationKind::attention || kind == OperationKind::attention_gradient ||
         kind == OperationKind::cached_attention;
}

class RuleMaker {
 public:
  RuleMaker(const OperandsOnAxis& operands, const AxisContext& context, const RuleRow& row)
      : operands_(operands), context_(context), row_(row) {
    const int rank = operands.graph->value(operands.operation->inputs[0]).shape.rank();
    notation_ = parse(row.operands, rank == 3 && !is_attention(row.kind));
  }

  std::vector<AxisRule> run() {
    for (const char letter : row_.letters) {
      if (row_.kind == OperationKind::matmul && letter == 'k' && output_present(1)) continue;
      if (is_attention(row_.kind) && letter == 's' && !context_.ring) continue;
      if (is_attention(row_.kind) && letter == 'h') {
        cut_heads();
      } else {
        for (const Placement& source : sources(letter)) cut(letter, source);
      }
    }
    add_whole();
    if (row_.adds) pass_partial();
    return std::move(rules_);
  }

 private:
  bool input_present(size_t i) const { return operands_.operation->inputs[i] != no_value; }
  bool output_present(size_t i) const { return operands_.operation->outputs[i] != no_value; }

  // The ways in which the dim is cut already, or must be.
  std::vector<Placement> sources(char letter) const {
    std::vector<Placement> list;
    const auto add = [&](Placement placement) {
      placement = at_dim(placement, 0);
      if (std::find(list.begin(), list.end(), placement) == list.end()) list.push_back(placement);
    };
    const bool token =
        context_.token.kind == PlacementKind::shard && letter == (context_.token.dim == 0 ? 'b' : 's');
    if (token) add(context_.token);
    if (letter == 'b' || letter == 's') return list;  // tokens are cut as the layout says, or not at all
    for (size_t i = 0; i < operands_.inputs.size(); ++i) {
      const Placement& now = operands_.inputs[i];
      if (input_present(i) && now.kind == PlacementKind::shard &&
          now.dim == dim_of(notation_.inputs[i], letter)) {
        add(now);
      }
    }
    for (size_t o = 0; o < operands_.parameters.size(); ++o) {
      const auto& parameter = operands_.parameters[o];
      if (parameter && parameter->kind == PlacementKind::shard &&
          parameter->dim == dim_of(notation_.outputs[o], letter)) {
        add(*parameter);
      }
    }
    return list;
  }

  AxisRule empty() const {
    return {std::vector<Placement>(notation_.inputs.size()),
            std::vector<Placement>(notation_.outputs.size())};
  }

  void cut(char letter, const Placement& source) {
    const bool partial = source.repeats_partial;
    if (partial && row_.linear < 0) return;
    AxisRule rule = empty();
    bool read = false;  // some input has the dim
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      const int dim = dim_of(notation_.inputs[i], letter);
      if (dim < 0) continue;
      read = true;
      rule.inputs[i] = at_dim(static_cast<int>(i) == row_.linear ? source : whole_repeats(source), dim);
    }
    for (size_t o = 0; o < rule.outputs.size(); ++o) {
      const int dim = dim_of(notation_.outputs[o], letter);
      if (dim >= 0) {
        rule.outputs[o] = at_dim(source, dim);
      } else if (read && !(row_.kind == OperationKind::cross_entropy && letter == 'v')) {
        // The same part on several ranks must not be counted more than once.
        if (source.repeat > 1 && !partial) return;
        rule.outputs[o] = {.kind = PlacementKind::partial};
      }
    }
    // What is added to the product is what the product is.
    if (row_.kind == OperationKind::matmul_input_gradient) rule.inputs[2] = rule.outputs[0];
    rules_.push_back(std::move(rule));
  }

  // Query heads and key heads are cut each in their own way.
  void cut_heads() {
    const size_t query = row_.kind == OperationKind::attention_gradient ? 1 : 0, key = query + 1;
    if (context_.query_heads) cut_heads(*context_.query_heads, *context_.key_heads);
    const Placement &q = operands_.inputs[query], &k = operands_.inputs[key];
    if (q.kind == PlacementKind::shard && q.dim == 2 && k.kind == PlacementKind::shard &&
        k.dim == dim_of(notation_.inputs[key], 'g')) {
      cut_heads(q, k);
    }
  }
  void cut_heads(const Placement& query, const Placement& key) {
    AxisRule rule = empty();
    const auto place = [&](const std::string& letters, bool sums) {
      if (dim_of(letters, 'h') >= 0) return at_dim(query, 2);
      const int dim = dim_of(letters, 'g');
      if (dim < 0) return Placement{};
      Placement placement = at_dim(key, dim);
      placement.repeats_partial = sums && placement.repeat > 1;  // neighbours have other queries
      return placement;
    };
    for (size_t i = 0; i < rule.inputs.size(); ++i) rule.inputs[i] = place(notation_.inputs[i], false);
    for (size_t o = 0; o < rule.outputs.size(); ++o) rule.outputs[o] = place(notation_.outputs[o], true);
    rules_.push_back(std::move(rule));
  }

  void add_whole() { rules_.push_back(empty()); }

  void pass_partial() {
    AxisRule rule = empty();
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      if (operands_.inputs[i].kind != PlacementKind::partial) return;
      rule.inputs[i] = operands_.inputs[i];
    }
    rule.outputs[0] = operands_.inputs[0];
    rules_.push_back(std::move(rule));
  }

  const OperandsOnAxis& operands_;
  const AxisContext& context_;
  const RuleRow& row_;
  Notation notation_;
  std::vector<AxisRule> rules_;
};

// A reshape keeps tokens and splits or joins the last dims: heads of E features are a unit of E features.
std::optional<Placement> through_reshape(const Placement& placement, const Shape& x, const Shape& y) {
  if (placement.kind != PlacementKind::shard || placement.dim < 2) return placement;
  if (placement.dim != 2) return std::nullopt;
  Placement result = placement;
  if (x.rank() == 3 && y.rank() == 4) {
    if (placement.unit % y[3] != 0) return std::nullopt;
    result.unit = static_cast<uint32_t>(placement.unit / y[3]);
  } else if (x.rank() == 4 && y.rank() == 3) {
    result.unit = static_cast<uint32_t>(placement.unit * x[3]);
  } else if (x.rank() != y.rank()) {
    return std::nullopt;
  }
  return result;
}

std::vector<AxisRule> reshape_rules(const OperandsOnAxis& operands) {
  const Shape& x = operands.graph->value(operands.operation->inputs[0]).shape;
  const Shape& y = operands.graph->value(operands.operation->outputs[0]).shape;
  std::vector<AxisRule> rules;
  if (const auto out = through_reshape(operands.inputs[0], x, y)) {
    rules.push_back({{operands.inputs[0]}, {*out}});
  }
  rules.push_back({{Placement{}}, {Placement{}}});
  return rules;
}

constexpr double impossible = std::numeric_limits<double>::infinity();

// Bytes that the ranks of the axis send to turn one placement into another, per rank and element of the
// whole.
double conversion_cost(const Placement& from, const Placement& to, int32_t ranks) {
  if (from == to) return 0;
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (to.kind == PlacementKind::partial || to.repeats_partial) return impossible;
  if (from.repeats_partial) return others + conversion_cost(whole_repeats(from), to, ranks);
  switch (from.kind) {
    case PlacementKind::replicate:
      return 1e-6;  // each rank takes its part
    case PlacementKind::partial:
      return to.kind == PlacementKind::replicate ? 2 * others : others;
    case PlacementKind::shard:
      if (to.kind == PlacementKind::replicate) return others;
      return from.dim == to.dim ? others : others / ranks;
  }
  return impossible;
}

// The gradient of a parameter is cut as the parameter is; sums over ranks that hold the same may be made
// later.
bool fits_parameter(const Placement& gradient, const Placement& parameter) {
  if (parameter.kind == PlacementKind::replicate) return gradient.kind != PlacementKind::shard;
  return whole_repeats(gradient) == parameter;
}

double cost_of(const AxisRule& rule, const OperandsOnAxis& operands, int32_t ranks) {
  double cost = 0;
  for (size_t o = 0; o < operands.parameters.size(); ++o) {
    if (operands.parameters[o] && !fits_parameter(rule.outputs[o], *operands.parameters[o]))
      return impossible;
  }
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    const ValueId id = operands.operation->inputs[i];
    if (id == no_value || rule.inputs[i] == operands.inputs[i]) continue;
    const Value& value = operands.graph->value(id);
    if (value.role == Role::parameter) return impossible;  // they are gathered by whole buckets or not at all
    cost += conversion_cost(operands.inputs[i], rule.inputs[i], ranks) *
            static_cast<double>(value.shape.elements());
  }
  return cost;
}

}  // namespace

AxisRule choose_rule(const OperandsOnAxis& operands, const AxisContext& context) {
  std::vector<AxisRule> rules;
  if (operands.operation->kind == OperationKind::reshape) {
    rules = reshape_rules(operands);
  } else {
    const auto* const row = std::find_if(std::begin(rule_rows), std::end(rule_rows), [&](const RuleRow& r) {
      return r.kind == operands.operation->kind;
    });
    ATHANOR_ASSERT(row != std::end(rule_rows), "{} has no placement rule", name_of(operands.operation->kind));
    rules = RuleMaker(operands, context, *row).run();
  }
  const AxisRule* best = nullptr;
  double least = impossible;
  for (const AxisRule& rule : rules) {
    const double cost = cost_of(rule, operands, context.ranks);
    if (cost >= least) continue;
    least = cost;
    best = &rule;
  }
  ATHANOR_ASSERT(best != nullptr, "no placement of {} in {} fits on axis {}",
                 name_of(operands.operation->kind), operands.graph->name, name_of(context.axis));
  return *best;
}

}  // namespace athanor
