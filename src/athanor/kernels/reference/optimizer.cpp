// Norms of gradients, clipping, AdamW (Loshchilov and Hutter 2019) and SGD with momentum over whole buckets.
#include <cmath>

#include "athanor/kernels/reference/bucket.h"

namespace athanor::reference {

namespace {

// Squares of the gradient as it is stored, the loss scale included.
void squared_norms(const KernelArguments& a, const KernelContext&) {
  const TensorView &gradient = a.inputs[0], &norms = a.outputs[0];
  for (size_t m = 0; m < a.table->members.size(); ++m) {
    const BucketMember& member = a.table->members[m];
    double sum = 0;
    for (int64_t i = 0; i < member.length(); ++i) {
      const double value = load(gradient, member.offset + i);
      sum += value * value;
    }
    store(norms, static_cast<int64_t>(m), sum);
  }
}

// The norm of the whole gradient without the loss scale. The step is skipped if that or the loss is not
// finite, if there is no valid token, or if the norm or the mean loss passes its limit; the factor is then 0.
void clip(const KernelArguments& a, const KernelContext& context) {
  const TensorView& norms = a.inputs[0];
  double sum = 0;
  for (int64_t m = 0; m < norms.shape.elements(); ++m) sum += load(norms, m);
  const double norm = std::sqrt(sum) / context.step->loss_scale, maximum = a.attributes->maximum_norm;
  const double valid_tokens = load(a.inputs[1], 0), loss = load(a.inputs[2], 0);
  const bool skip = !std::isfinite(norm) || !std::isfinite(loss) || !(valid_tokens > 0) ||
                    norm > context.step->norm_limit || loss / valid_tokens > context.step->loss_limit;
  const double factor = maximum > 0 && norm > maximum ? maximum / norm : 1;
  store(a.outputs[0], 0, norm);
  store(a.outputs[1], 0, skip ? 0 : factor);
  store(a.outputs[2], 0, skip ? 1 : 0);
}

// Decoupled weight decay with bias correction, as torch.optim.AdamW.
void adamw(const KernelArguments& a, const KernelContext& context) {
  const TensorView& gradient = a.inputs[0];
  const TensorView &master = a.outputs[0], &first = a.outputs[1], &second = a.outputs[2];
  const Attributes& attributes = *a.attributes;
  if (skipped(a.inputs[2])) return;
  const double factor = gradient_factor(a.inputs[1], context);
  const auto number = static_cast<double>(context.step->optimizer_step);
  const double correction1 = 1 - std::pow(attributes.beta1, number);
  const double correction2 = 1 - std::pow(attributes.beta2, number);
  for_elements(*a.table, [&](const BucketMember& member, int64_t, int64_t e) {
    const double g = load(gradient, e) * factor;
    const double m = attributes.beta1 * load(first, e) + (1 - attributes.beta1) * g;
    const double v = attributes.beta2 * load(second, e) + (1 - attributes.beta2) * g * g;
    const double rate = context.step->learning_rate * member.learning_rate_factor;
    double weight = load(master, e);
    weight -= rate * member.weight_decay * weight;
    weight -= rate * (m / correction1) / (std::sqrt(v / correction2) + attributes.epsilon);
    store(first, e, m);
    store(second, e, v);
    store_weight(master, a.outputs[3], a.outputs[4], attributes.average_decay, e, weight);
  });
}

// Coupled weight decay, momentum without dampening, as torch.optim.SGD.
void sgd(const KernelArguments& a, const KernelContext& context) {
  const TensorView &gradient = a.inputs[0], &master = a.outputs[0], &buffer = a.outputs[1];
  const Attributes& attributes = *a.attributes;
  if (skipped(a.inputs[2])) return;
  const double factor = gradient_factor(a.inputs[1], context);
  for_elements(*a.table, [&](const BucketMember& member, int64_t, int64_t e) {
    const double weight = load(master, e);
    const double g = load(gradient, e) * factor + member.weight_decay * weight;
    const double running = attributes.momentum * load(buffer, e) + g;
    const double update = attributes.nesterov ? g + attributes.momentum * running : running;
    const double rate = context.step->learning_rate * member.learning_rate_factor;
    store(buffer, e, running);
    store_weight(master, a.outputs[2], a.outputs[3], attributes.average_decay, e, weight - rate * update);
  });
}

}  // namespace

void add_optimizer(KernelTable& table) {
  set_all(table, OperationKind::squared_norms, {.run = squared_norms});
  set_all(table, OperationKind::clip, {.run = clip});
  set_all(table, OperationKind::adamw, {.run = adamw});
  set_all(table, OperationKind::sgd, {.run = sgd});
}

}  // namespace athanor::reference
