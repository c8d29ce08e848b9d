// Masked attention with grouped queries, forward and backward, one query or key at a time.
#include <cmath>
#include <limits>

#include "athanor/kernels/dropout_coordinates.h"
#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// The operands that masks and dropout compare. Keys are the queries' own, or a part of all keys.
struct MaskOperands {
  const TensorView &positions, &documents, &indices, &key_positions, &key_documents, &key_indices, &samples;
};

// Which keys a query sees, and which probabilities dropout keeps: functions of the batch tensors alone.
class Mask {
 public:
  Mask(const KernelArguments& a, const KernelContext& context, const MaskOperands& operands)
      : operands_(operands),
        first_head_(a.first),
        window_(a.attributes->window),
        threshold_(dropout_threshold(a.attributes->probability)),
        scale_(dropout_scale(a.attributes->probability)) {
    if (threshold_ == 0) return;
    ATHANOR_ASSERT(operands.indices.present() && operands.key_indices.present() && operands.samples.present(),
                   "attention dropout without indices and sample ids");
    key_ = dropout_key(context.step->seed, a.name_hash, context.step->step);
  }

  bool visible(int64_t sample, int64_t query, int64_t key) const {
    if (at(operands_.documents, sample, query) != at(operands_.key_documents, sample, key)) return false;
    const int64_t distance =
        at(operands_.positions, sample, query) - at(operands_.key_positions, sample, key);
    return distance >= 0 && (window_ == 0 || distance < window_);
  }

  // The factor of a probability: 0 where it is dropped.
  double keep(int64_t sample, int64_t head, int64_t query, int64_t key) const {
    if (threshold_ == 0) return 1;
    const uint32_t word = dropout_word(
        head_key(key_, first_head_ + head), load_integer(operands_.samples, sample),
        static_cast<int32_t>(at(operands_.indices, sample, query)), at(operands_.key_indices, sample, key));
    return word >= threshold_ ? scale_ : 0;
  }

 private:
  static int64_t at(const TensorView& tensor, int64_t sample, int64_t index) {
    return load_integer(tensor, token_offset(tensor, sample * tensor.shape[1] + index));
  }
  MaskOperands operands_;
  int64_t first_head_, window_;
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

const TensorView absent;

// What earlier parts of the keys gave, if there were any.
struct Before {
  const TensorView &out, &logsumexp;
};

// out = softmax over visible keys of (scale q.k), dropped out, times v; logsumexp of those scores. A query
// that sees no key gives 0 and -inf. With results of earlier parts, those of all keys together: each part
// weighs what its exponentials add up to (Milakov and Gimelshein 2018).
void attend(const KernelArguments& a, const Mask& mask, const Before& before) {
  const TensorView &q = a.inputs[0], &k = a.inputs[1], &v = a.inputs[2], &out = a.outputs[0],
                   &lse = a.outputs[1];
  const int64_t samples = q.shape[0], queries = q.shape[1], heads = q.shape[2], width = q.shape[3];
  const int64_t keys = k.shape[1], group = k.shape[2] == 0 ? 1 : heads / k.shape[2];
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  Scratch scratch(a.workspace);
  double *query_scratch = scratch.take(width), *key_scratch = scratch.take(width);
  double *total = scratch.take(width), *scores = scratch.take(keys);
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t token = b * queries + i;
      for (int64_t h = 0; h < heads; ++h) {
        const double* query = read_head(q, token, h, query_scratch);
        int64_t seen = 0;
        double maximum = nothing;
        for (int64_t j = 0; j < keys; ++j) {
          if (!mask.visible(b, i, j)) continue;
          scores[j] =
              a.attributes->scale * dot(query, read_head(k, b * keys + j, h / group, key_scratch), width);
          maximum = std::max(maximum, scores[j]);
          ++seen;
        }
        double sum = 0;
        std::fill_n(total, width, 0.0);
        for (int64_t j = 0; j < keys && seen > 0; ++j) {
          if (!mask.visible(b, i, j)) continue;
          const double weight = std::exp(scores[j] - maximum);
          sum += weight;
          const double kept = weight * mask.keep(b, h, i, j);
          const double* value = read_head(v, b * keys + j, h / group, key_scratch);
          for (int64_t e = 0; e < width; ++e) total[e] += kept * value[e];
        }
        const double earlier = before.logsumexp.present()
                                   ? load(before.logsumexp, token_offset(before.logsumexp, token) + h)
                                   : nothing;
        if (earlier > nothing) {
          const double largest = std::max(maximum, earlier);
          const double weight = std::exp(earlier - largest);
          const double scale = seen > 0 ? std::exp(maximum - largest) : 0;
          const double* value = read_head(before.out, token, h, key_scratch);
          for (int64_t e = 0; e < width; ++e) total[e] = total[e] * scale + weight * value[e];
          sum = sum * scale + weight;
          maximum = largest;
        }
        for (int64_t e = 0; e < width && sum > 0; ++e) total[e] /= sum;
        write_head(out, token, h, total);
        store(lse, token_offset(lse, token) + h, maximum + std::log(sum));
      }
    }
  }
}

void attention(const KernelArguments& a, const KernelContext& context) {
  const TensorView &positions = a.inputs[3], &documents = a.inputs[4], &indices = a.inputs[5];
  const Mask mask(a, context, {positions, documents, indices, positions, documents, indices, a.inputs[6]});
  attend(a, mask, {absent, absent});
}

void attention_part(const KernelArguments& a, const KernelContext& context) {
  const Mask mask(
      a, context,
      {a.inputs[3], a.inputs[4], a.inputs[9], a.inputs[5], a.inputs[6], a.inputs[10], a.inputs[11]});
  attend(a, mask, {a.inputs[7], a.inputs[8]});
}

// Operands of the backward pass, and the gradient of one score.
struct Backward {
  const TensorView &dout, &q, &k, &v, &out, &lse;
  const Mask& mask;
  double scale;
  int64_t queries, keys, width;
  double *query, *key, *value, *gradient, *output;  // scratch rows

  // Of the pair (query i, key j) in sample b and head h: `kept`, the probability after dropout, and `score`,
  // the gradient with respect to scale * q.k: p (keep dout.v - dout.out), where dout.out is the sum of
  // probability times gradient over the row (Dao et al. 2022). Leaves the q, k and dout rows in the pointers.
  struct Pair {
    double kept, score;
    const double *query, *key, *gradient;
  };
  Pair pair(int64_t b, int64_t h, int64_t key_head, int64_t i, int64_t j) const {
    const int64_t row = b * queries + i, column = b * keys + j;
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

// What a gradient starts from: what other parts gave, or zeros.
void start(const TensorView& before, int64_t token, int64_t head, double* total, double* scratch,
           int64_t width) {
  if (before.present()) {
    std::copy_n(read_head(before, token, head, scratch), width, total);
  } else {
    std::fill_n(total, width, 0.0);
  }
}

struct GradientsBefore {
  const TensorView &dq, &dk, &dv;
};

void attend_gradient(const KernelArguments& a, const Mask& mask, const GradientsBefore& before) {
  const TensorView &dq = a.outputs[0], &dk = a.outputs[1], &dv = a.outputs[2];
  const TensorView &q = a.inputs[1], &k = a.inputs[2];
  const int64_t samples = q.shape[0], queries = q.shape[1], heads = q.shape[2], width = q.shape[3];
  const int64_t keys = k.shape[1], key_heads = k.shape[2], group = key_heads == 0 ? 1 : heads / key_heads;
  Scratch scratch(a.workspace);
  const Backward backward{a.inputs[0],
                          q,
                          k,
                          a.inputs[3],
                          a.inputs[4],
                          a.inputs[5],
                          mask,
                          a.attributes->scale,
                          queries,
                          keys,
                          width,
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width),
                          scratch.take(width)};
  double *first = scratch.take(width), *second = scratch.take(width);
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < queries; ++i) {  // dq: each query over its keys
      for (int64_t h = 0; h < heads; ++h) {
        start(before.dq, b * queries + i, h, first, second, width);
        for (int64_t j = 0; j < keys; ++j) {
          if (!mask.visible(b, i, j)) continue;
          const Backward::Pair pair = backward.pair(b, h, h / group, i, j);
          for (int64_t e = 0; e < width; ++e) first[e] += backward.scale * pair.score * pair.key[e];
        }
        write_head(dq, b * queries + i, h, first);
      }
    }
    for (int64_t j = 0; j < keys; ++j) {  // dk, dv: each key over the queries of all heads of its group
      for (int64_t key_head = 0; key_head < key_heads; ++key_head) {
        start(before.dk, b * keys + j, key_head, first, backward.key, width);
        start(before.dv, b * keys + j, key_head, second, backward.key, width);
        for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
          for (int64_t i = 0; i < queries; ++i) {
            if (!mask.visible(b, i, j)) continue;
            const Backward::Pair pair = backward.pair(b, h, key_head, i, j);
            for (int64_t e = 0; e < width; ++e) {
              first[e] += backward.scale * pair.score * pair.query[e];
              second[e] += pair.kept * pair.gradient[e];
            }
          }
        }
        write_head(dk, b * keys + j, key_head, first);
        write_head(dv, b * keys + j, key_head, second);
      }
    }
  }
}

void attention_gradient(const KernelArguments& a, const KernelContext& context) {
  const TensorView &positions = a.inputs[6], &documents = a.inputs[7], &indices = a.inputs[8];
  const Mask mask(a, context, {positions, documents, indices, positions, documents, indices, a.inputs[9]});
  attend_gradient(a, mask, {absent, absent, absent});
}

void attention_part_gradient(const KernelArguments& a, const KernelContext& context) {
  const Mask mask(
      a, context,
      {a.inputs[6], a.inputs[7], a.inputs[13], a.inputs[8], a.inputs[9], a.inputs[14], a.inputs[15]});
  attend_gradient(a, mask, {a.inputs[10], a.inputs[11], a.inputs[12]});
}

}  // namespace

void add_attention(KernelTable& table) {
  const auto forward_bytes = [](const Attributes&, Types in, Types, int) {
    return doubles(3 * in[0].shape[3] + in[1].shape[1]);
  };
  const auto backward_bytes = [](const Attributes&, Types in, Types, int) {
    return doubles(7 * in[1].shape[3]);
  };
  set_all(table, OperationKind::attention, {.run = attention, .workspace_bytes = forward_bytes});
  set_all(table, OperationKind::attention_part, {.run = attention_part, .workspace_bytes = forward_bytes});
  set_all(table, OperationKind::attention_gradient,
          {.run = attention_gradient, .workspace_bytes = backward_bytes});
  set_all(table, OperationKind::attention_part_gradient,
          {.run = attention_part_gradient, .workspace_bytes = backward_bytes});
}

}  // namespace athanor::reference
