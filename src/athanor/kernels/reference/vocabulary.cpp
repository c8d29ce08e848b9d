// Cross entropy of a part of the vocabulary, in the three phases between which ranks combine what they have.
#include <array>
#include <cmath>
#include <limits>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// The columns [0, count) of a token's row are columns [first, first + count) of the vocabulary; what is
// beyond it is padding.
struct Part {
  explicit Part(const KernelArguments& a)
      : logits(a.inputs[0]),
        cap(a.attributes->soft_cap),
        vocabulary(a.attributes->extent),
        count(std::clamp<int64_t>(vocabulary - a.first, 0, logits.shape[2])) {}

  double capped(int64_t token, int64_t i) const {
    const double x = load(logits, token_offset(logits, token) + i);
    return cap == 0 ? x : cap * std::tanh(x / cap);
  }
  const TensorView& logits;
  double cap;
  int64_t vocabulary, count;
};

int64_t checked_label(const TensorView& labels, int64_t token, int64_t vocabulary) {
  const int64_t label = load_integer(labels, token_offset(labels, token));
  if (label != ignored_label && (label < 0 || label >= vocabulary)) {
    throw_user_error(fmt::format("label {} is outside of the vocabulary of {}", label, vocabulary),
                     "use the tokenizer that the data was made with, or a model with its vocabulary size");
  }
  return label;
}

void vocabulary_max(const KernelArguments& a, const KernelContext&) {
  const Part part(a);
  for (int64_t token = 0; token < part.logits.shape.tokens(); ++token) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < part.count; ++i) maximum = std::max(maximum, part.capped(token, i));
    store(a.outputs[0], token_offset(a.outputs[0], token), maximum);
  }
}

void vocabulary_sums(const KernelArguments& a, const KernelContext&) {
  const Part part(a);
  const TensorView &labels = a.inputs[1], &row_max = a.inputs[2], &sums = a.outputs[0];
  for (int64_t token = 0; token < part.logits.shape.tokens(); ++token) {
    const double maximum = load(row_max, token_offset(row_max, token));
    const int64_t label = checked_label(labels, token, part.vocabulary) - a.first;
    std::array<double, 3> total{};  // of exponentials, of logits, the label's
    for (int64_t i = 0; i < part.count; ++i) {
      const double l = part.capped(token, i);
      total[0] += std::exp(l - maximum);
      total[1] += l;
      if (i == label) total[2] = l;
    }
    write(sums, token_offset(sums, token), 3, total.data());
  }
}

// As cross_entropy, with the sums over the whole vocabulary given.
void vocabulary_loss(const KernelArguments& a, const KernelContext& context) {
  const Part part(a);
  const TensorView &labels = a.inputs[1], &row_max = a.inputs[2], &sums = a.inputs[3];
  const TensorView &valid_tokens = a.inputs[4], &token_loss = a.outputs[0], &dlogits = a.outputs[1];
  const double smoothing = a.attributes->label_smoothing, z_loss = a.attributes->z_loss;
  const auto size = static_cast<double>(part.vocabulary);
  const double valid = valid_tokens.present() ? load(valid_tokens, 0) : 0;
  ATHANOR_ASSERT(valid_tokens.present() || !dlogits.present(),
                 "a gradient without the number of valid tokens");
  const double gradient_scale = valid > 0 ? context.step->loss_scale / valid : 0;
  for (int64_t token = 0; token < part.logits.shape.tokens(); ++token) {
    const int64_t label = checked_label(labels, token, part.vocabulary);
    const bool ignored = label == ignored_label;
    const int64_t at = token_offset(sums, token);
    const double z = load(row_max, token_offset(row_max, token)) + std::log(load(sums, at));
    const double mean = load(sums, at + 1) / size;
    store(token_loss, token_offset(token_loss, token),
          ignored ? 0 : (1 - smoothing) * (z - load(sums, at + 2)) + smoothing * (z - mean) + z_loss * z * z);
    for (int64_t i = 0; dlogits.present() && i < part.logits.shape[2]; ++i) {
      double gradient = 0;
      if (!ignored && i < part.count) {
        const double l = part.capped(token, i);
        gradient = std::exp(l - z) * (1 + 2 * z_loss * z);
        gradient -= smoothing / size + (a.first + i == label ? 1 - smoothing : 0);
        if (part.cap != 0) gradient *= 1 - l / part.cap * (l / part.cap);
      }
      store(dlogits, token_offset(dlogits, token) + i, gradient_scale * gradient);
    }
  }
}

}  // namespace

void add_vocabulary(KernelTable& table) {
  set_all(table, OperationKind::vocabulary_max, {.run = vocabulary_max});
  set_all(table, OperationKind::vocabulary_sums, {.run = vocabulary_sums});
  set_all(table, OperationKind::vocabulary_loss, {.run = vocabulary_loss});
}

}  // namespace athanor::reference
