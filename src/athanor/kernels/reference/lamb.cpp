// LAMB (You et al. 2020) with bias correction, in two passes: norms without writing any state, then the
// update.
#include <cmath>

#include "athanor/kernels/reference/bucket.h"

namespace athanor::reference {

namespace {

// The moments and the update u = m^ / (sqrt(v^) + epsilon) + decay w of one element.
struct Update {
  double first, second, update;
};

class Rule {
 public:
  Rule(const KernelArguments& a, const KernelContext& context, const TensorView& master,
       const TensorView& first, const TensorView& second)
      : attributes_(*a.attributes), gradient_(a.inputs[0]), master_(master), first_(first), second_(second) {
    const auto number = static_cast<double>(context.step->optimizer_step);
    factor_ = gradient_factor(a.inputs[1], context);
    correction1_ = 1 - std::pow(attributes_.beta1, number);
    correction2_ = 1 - std::pow(attributes_.beta2, number);
  }
  Update at(const BucketMember& member, int64_t e) const {
    const double g = load(gradient_, e) * factor_;
    Update result{};
    result.first = attributes_.beta1 * load(first_, e) + (1 - attributes_.beta1) * g;
    result.second = attributes_.beta2 * load(second_, e) + (1 - attributes_.beta2) * g * g;
    result.update =
        result.first / correction1_ / (std::sqrt(result.second / correction2_) + attributes_.epsilon) +
        member.weight_decay * load(master_, e);
    return result;
  }

 private:
  const Attributes& attributes_;
  const TensorView &gradient_, &master_, &first_, &second_;
  double factor_ = 1, correction1_ = 1, correction2_ = 1;
};

// norms[2 m] = |weight|^2, norms[2 m + 1] = |update|^2 of member m; zeros when the step is skipped.
void lamb_norms(const KernelArguments& a, const KernelContext& context) {
  const TensorView& norms = a.outputs[0];
  const int64_t members = static_cast<int64_t>(a.table->members.size());
  for (int64_t i = 0; i < 2 * members; ++i) store(norms, i, 0);
  if (skipped(a.inputs[2])) return;
  const Rule rule(a, context, a.inputs[3], a.inputs[4], a.inputs[5]);
  for (int64_t m = 0; m < members; ++m) {
    const BucketMember& member = a.table->members[static_cast<size_t>(m)];
    double weight_sum = 0, update_sum = 0;
    for (int64_t e = member.offset; e < member.offset + member.length(); ++e) {
      const double weight = load(a.inputs[3], e), update = rule.at(member, e).update;
      weight_sum += weight * weight;
      update_sum += update * update;
    }
    store(norms, 2 * m, weight_sum);
    store(norms, 2 * m + 1, update_sum);
  }
}

// |weight| / |update| within the bounds; 1 for norms and biases and where one of the two is 0.
double trust_ratio(const Attributes& attributes, const BucketMember& member, double weight_square,
                   double update_square) {
  if (member.role == ParameterRole::norm || member.role == ParameterRole::bias) return 1;
  if (!(weight_square > 0) || !(update_square > 0)) return 1;
  const double ratio = std::max(std::sqrt(weight_square) / std::sqrt(update_square), attributes.trust_low);
  return attributes.trust_high > 0 ? std::min(ratio, attributes.trust_high) : ratio;
}

void lamb(const KernelArguments& a, const KernelContext& context) {
  const TensorView& norms = a.inputs[3];
  const TensorView &master = a.outputs[0], &first = a.outputs[1], &second = a.outputs[2];
  if (skipped(a.inputs[2])) return;
  const Rule rule(a, context, master, first, second);
  for_elements(*a.table, [&](const BucketMember& member, int64_t m, int64_t e) {
    const double ratio = trust_ratio(*a.attributes, member, load(norms, 2 * m), load(norms, 2 * m + 1));
    const double rate = context.step->learning_rate * member.learning_rate_factor;
    const Update update = rule.at(member, e);
    const double weight = load(master, e) - rate * ratio * update.update;
    store(first, e, update.first);
    store(second, e, update.second);
    store_weight(master, a.outputs[3], a.outputs[4], a.attributes->average_decay, e, weight);
  });
}

}  // namespace

void add_lamb(KernelTable& table) {
  set_all(table, OperationKind::lamb_norms, {.run = lamb_norms});
  set_all(table, OperationKind::lamb, {.run = lamb});
}

}  // namespace athanor::reference
