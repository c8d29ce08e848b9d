// Cross entropy with its gradient, and the counters and sums around it.
#include <cmath>
#include <limits>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// With l = soft_cap tanh(logits / soft_cap) and z = logsumexp(l) a token's loss is
//   (1 - s) (z - l[label]) + s (z - mean(l)) + z_loss z^2,   s the label smoothing,
// and its gradient (softmax(l) (1 + 2 z_loss z) - (1 - s) [i = label] - s / V) times dl / dlogits.
void cross_entropy(const KernelArguments& a, const KernelContext& context) {
  const TensorView &logits = a.inputs[0], &labels = a.inputs[1], &valid_tokens = a.inputs[2];
  const TensorView &token_loss = a.outputs[0], &dlogits = a.outputs[1];
  const Attributes& attributes = *a.attributes;
  const int64_t vocabulary = logits.shape[-1];
  const double smoothing = attributes.label_smoothing, cap = attributes.soft_cap;
  const double valid = valid_tokens.present() ? load(valid_tokens, 0) : 0;
  ATHANOR_ASSERT(valid_tokens.present() || !dlogits.present(),
                 "a gradient without the number of valid tokens");
  const double gradient_scale = valid > 0 ? context.step->loss_scale / valid : 0;
  double* l = Scratch(a.workspace).take(vocabulary);
  for (int64_t token = 0; token < logits.shape.tokens(); ++token) {
    const int64_t label = load_integer(labels, token_offset(labels, token));
    const int64_t first = token_offset(dlogits, token);
    if (label == ignored_label) {
      store(token_loss, token_offset(token_loss, token), 0);
      for (int64_t i = 0; dlogits.present() && i < vocabulary; ++i) store(dlogits, first + i, 0);
      continue;
    }
    if (label < 0 || label >= vocabulary) {
      throw_user_error(fmt::format("label {} is outside of the vocabulary of {}", label, vocabulary),
                       "use the tokenizer that the data was made with, or a model with its vocabulary size");
    }
    std::copy_n(read(logits, token_offset(logits, token), vocabulary, l), vocabulary, l);
    for (int64_t i = 0; cap != 0 && i < vocabulary; ++i) l[i] = cap * std::tanh(l[i] / cap);
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0, total = 0;
    for (int64_t i = 0; i < vocabulary; ++i) maximum = std::max(maximum, l[i]);
    for (int64_t i = 0; i < vocabulary; ++i) sum += std::exp(l[i] - maximum);
    for (int64_t i = 0; i < vocabulary; ++i) total += l[i];
    const double z = maximum + std::log(sum), mean = total / static_cast<double>(vocabulary);
    store(token_loss, token_offset(token_loss, token),
          (1 - smoothing) * (z - l[label]) + smoothing * (z - mean) + attributes.z_loss * z * z);
    for (int64_t i = 0; dlogits.present() && i < vocabulary; ++i) {
      double gradient = std::exp(l[i] - z) * (1 + 2 * attributes.z_loss * z);
      gradient -= smoothing / static_cast<double>(vocabulary) + (i == label ? 1 - smoothing : 0);
      if (cap != 0) gradient *= 1 - l[i] / cap * (l[i] / cap);
      store(dlogits, first + i, gradient_scale * gradient);
    }
  }
}

void count_valid(const KernelArguments& a, const KernelContext&) {
  const TensorView &labels = a.inputs[0], &valid_tokens = a.outputs[0];
  double count = 0;
  for (int64_t token = 0; token < labels.shape.tokens(); ++token) {
    if (load_integer(labels, token_offset(labels, token)) != ignored_label) count += 1;
  }
  write(valid_tokens, 0, 1, &count, a.accumulate);
}

void sum(const KernelArguments& a, const KernelContext&) {
  const TensorView& x = a.inputs[0];
  const Rows rows(x);
  double total = 0;
  for (int64_t row = 0; row < rows.count(); ++row) {
    for (int64_t i = 0; i < rows.length(); ++i) total += load(x, rows.offset(row) + i);
  }
  write(a.outputs[0], 0, 1, &total, a.accumulate);
}

}  // namespace

void add_loss(KernelTable& table) {
  set_all(table, OperationKind::cross_entropy,
          {.run = cross_entropy, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(in[0].shape[-1]);
           }});
  set_all(table, OperationKind::count_valid, {.run = count_valid});
  set_all(table, OperationKind::sum, {.run = sum});
}

}  // namespace athanor::reference
