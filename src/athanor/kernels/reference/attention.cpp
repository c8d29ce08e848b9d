// Masked attention with grouped queries, forward and backward, one query or key at a time.
#include <cmath>
#include <limits>

#include "athanor/kernels/dropout_coordinates.h"
#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// Which keys a query sees, and which probabilities dropout keeps: functions of the batch tensors alone.
class Mask {
 public:
  Mask(const KernelArguments& a, const KernelContext& context, size_t first_input, int64_t sequence)
      : positions_(a.inputs[first_input]),
        documents_(a.inputs[first_input + 1]),
        indices_(a.inputs[first_input + 2]),
        samples_(a.inputs[first_input + 3]),
        sequence_(sequence),
        window_(a.attributes->window),
        threshold_(dropout_threshold(a.attributes->probability)),
        scale_(dropout_scale(a.attributes->probability)) {
    if (threshold_ == 0) return;
    ATHANOR_ASSERT(indices_.present() && samples_.present(),
                   "attention dropout without indices and sample ids");
    key_ = dropout_key(context.step->seed, a.name_hash, context.step->step);
  }

  bool visible(int64_t sample, int64_t query, int64_t key) const {
    if (at(documents_, sample, query) != at(documents_, sample, key)) return false;
    const int64_t distance = at(positions_, sample, query) - at(positions_, sample, key);
    return distance >= 0 && (window_ == 0 || distance < window_);
  }

  // The factor of a probability: 0 where it is dropped.
  double keep(int64_t sample, int64_t head, int64_t query, int64_t key) const {
    if (threshold_ == 0) return 1;
    const uint32_t word =
        dropout_word(head_key(key_, head), load_integer(samples_, sample),
                     static_cast<int32_t>(at(indices_, sample, query)), at(indices_, sample, key));
    return word >= threshold_ ? scale_ : 0;
  }

 private:
  int64_t at(const TensorView& tensor, int64_t sample, int64_t index) const {
    return load_integer(tensor, token_offset(tensor, sample * sequence_ + index));
  }
  const TensorView &positions_, &documents_, &indices_, &samples_;
  int64_t sequence_, window_;
  uint32_t threshold_;
  double scale_;
  DropoutKey key_;
};

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// The row of one head of a token in [B,S,H,E].
const double* read_head(const TensorView& tensor, int64_t token, int64_t head, double* scratch) {
  const int64_t width = tensor.shape[3];
  return read(tensor, token_offset(tensor, token) + head * width, width, scratch);
}
void write_head(const TensorView& tensor, int64_t token, int64_t head, const double* values) {
  const int64_t width = tensor.shape[3];
  write(tensor, token_offset(tensor, token) + head * width, width, values);
}

// out = softmax over visible keys of (scale q.k), dropped out, times v; logsumexp of those scores. A query
// that sees no key gives 0 and -inf.
void attention(const KernelArguments& a, const KernelContext& context) {
  const TensorView &q = a.inputs[0], &k = a.inputs[1], &v = a.inputs[2], &out = a.outputs[0],
                   &lse = a.outputs[1];
  const int64_t samples = q.shape[0], sequence = q.shape[1], heads = q.shape[2], width = q.shape[3];
  const int64_t group = k.shape[2] == 0 ? 1 : heads / k.shape[2];
  const Mask mask(a, context, 3, sequence);
  Scratch scratch(a.workspace);
  double *query_scratch = scratch.take(width), *key_scratch = scratch.take(width);
  double *total = scratch.take(width), *scores = scratch.take(sequence);
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < sequence; ++i) {
      const int64_t token = b * sequence + i;
      for (int64_t h = 0; h < heads; ++h) {
        const double* query = read_head(q, token, h, query_scratch);
        int64_t seen = 0;
        double maximum = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < sequence; ++j) {
          if (!mask.visible(b, i, j)) continue;
          scores[j] =
              a.attributes->scale * dot(query, read_head(k, b * sequence + j, h / group, key_scratch), width);
          maximum = std::max(maximum, scores[j]);
          ++seen;
        }
        double sum = 0;
        std::fill_n(total, width, 0.0);
        for (int64_t j = 0; j < sequence && seen > 0; ++j) {
          if (!mask.visible(b, i, j)) continue;
          const double weight = std::exp(scores[j] - maximum);
          sum += weight;
          const double kept = weight * mask.keep(b, h, i, j);
          const double* value = read_head(v, b * sequence + j, h / group, key_scratch);
          for (int64_t e = 0; e < width; ++e) total[e] += kept * value[e];
        }
        for (int64_t e = 0; e < width && seen > 0; ++e) total[e] /= sum;
        write_head(out, token, h, total);
        store(lse, token_offset(lse, token) + h, maximum + std::log(sum));
      }
    }
  }
}

// Operands of the backward pass, and the gradient of one score.
struct Backward {
  const TensorView &dout, &q, &k, &v, &out, &lse;
  const Mask& mask;
  double scale;
  int64_t sequence, width;
  double *query, *key, *value, *gradient, *output;  // scratch rows

  // Of the pair (query i, key j) in sample b and head h: `kept`, the probability after dropout, and `score`,
  // the gradient with respect to scale * q.k: p (keep dout.v - dout.out), where dout.out is the sum of
  // probability times gradient over the row (Dao et al. 2022). Leaves the q, k and dout rows in the pointers.
  struct Pair {
    double kept, score;
    const double *query, *key, *gradient;
  };
  Pair pair(int64_t b, int64_t h, int64_t key_head, int64_t i, int64_t j) const {
    const int64_t row = b * sequence + i, column = b * sequence + j;
    Pair result{};
    result.query = read_head(q, row, h, query);
    result.key = read_head(k, column, key_head, key);
    result.gradient = read_head(dout, row, h, gradient);
    const double probability =
        std::exp(scale * dot(result.query, result.key, width) - load(lse, token_offset(lse, row) + h));
    const double keep = mask.keep(b, h, i, j);
    const double to_probability = keep * dot(result.gradient, read_head(v, column, key_head, value), width);
    const double row_sum = dot(result.gradient, read_head(out, row, h, output), width);
    result.kept = probability * keep;
    result.score = probability * (to_probability - row_sum);
    return result;
  }
};

void attention_gradient(const KernelArguments& a, const KernelContext& context) {
  const TensorView &dq = a.outputs[0], &dk = a.outputs[1], &dv = a.outputs[2];
  const TensorView &q = a.inputs[1], &k = a.inputs[2];
  const int64_t samples = q.shape[0], sequence = q.shape[1], heads = q.shape[2], width = q.shape[3];
  const int64_t key_heads = k.shape[2], group = key_heads == 0 ? 1 : heads / key_heads;
  const Mask mask(a, context, 6, sequence);
  Scratch scratch(a.workspace);
  const Backward backward{a.inputs[0],
                          q,
                          k,
                          a.inputs[3],
                          a.inputs[4],
                          a.inputs[5],
                          mask,
                          a.attributes->scale,
                          sequence,
                          width,
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width)};
  double *first = scratch.take(width), *second = scratch.take(width);
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < sequence; ++i) {  // dq: each query over its keys
      for (int64_t h = 0; h < heads; ++h) {
        std::fill_n(first, width, 0.0);
        for (int64_t j = 0; j < sequence; ++j) {
          if (!mask.visible(b, i, j)) continue;
          const Backward::Pair pair = backward.pair(b, h, h / group, i, j);
          for (int64_t e = 0; e < width; ++e) first[e] += backward.scale * pair.score * pair.key[e];
        }
        write_head(dq, b * sequence + i, h, first);
      }
    }
    for (int64_t j = 0; j < sequence; ++j) {  // dk, dv: each key over the queries of all heads of its group
      for (int64_t key_head = 0; key_head < key_heads; ++key_head) {
        std::fill_n(first, width, 0.0);
        std::fill_n(second, width, 0.0);
        for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
          for (int64_t i = 0; i < sequence; ++i) {
            if (!mask.visible(b, i, j)) continue;
            const Backward::Pair pair = backward.pair(b, h, key_head, i, j);
            for (int64_t e = 0; e < width; ++e) {
              first[e] += backward.scale * pair.score * pair.query[e];
              second[e] += pair.kept * pair.gradient[e];
            }
          }
        }
        write_head(dk, b * sequence + j, key_head, first);
        write_head(dv, b * sequence + j, key_head, second);
      }
    }
  }
}

}  // namespace

void add_attention(KernelTable& table) {
  set_all(table, OperationKind::attention,
          {.run = attention, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(3 * in[0].shape[3] + in[0].shape[1]);
           }});
  set_all(table, OperationKind::attention_gradient,
          {.run = attention_gradient, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(7 * in[1].shape[3]);
           }});
}

}  // namespace athanor::reference
