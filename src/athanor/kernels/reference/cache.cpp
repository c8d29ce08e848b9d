// The key-value cache: writing to it, attention to what it holds, and the last token of each sample.
#include <cmath>
#include <limits>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// Tokens of a sample that count.
int64_t length_of(const TensorView& lengths, int64_t sample, int64_t tokens) {
  const int64_t length = load_integer(lengths, sample);
  ATHANOR_ASSERT(length >= 0 && length <= tokens, "sample {} has {} tokens of {}", sample, length, tokens);
  return length;
}

// Elements of one head of a position in a cache [R,K,C,E].
int64_t cache_offset(const TensorView& cache, int64_t row, int64_t head, int64_t position) {
  const int64_t slots = cache.shape[2];
  ATHANOR_ASSERT(row >= 0 && row < cache.shape[0] && position >= 0, "row {}, position {}", row, position);
  return ((row * cache.shape[1] + head) * slots + position % slots) * cache.shape[3];
}

void cache_write(const KernelArguments& a, const KernelContext&) {
  const TensorView &positions = a.inputs[2], &lengths = a.inputs[3], &rows = a.inputs[4];
  const Shape& shape = a.inputs[0].shape;
  Scratch scratch(a.workspace);
  double* values = scratch.take(shape[3]);
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t s = 0; s < length_of(lengths, b, shape[1]); ++s) {
      const int64_t token = b * shape[1] + s, position = load_integer(positions, token);
      for (int64_t head = 0; head < shape[2]; ++head) {
        for (size_t part = 0; part < 2; ++part) {
          const TensorView &from = a.inputs[part], &to = a.outputs[part];
          const double* row = read(from, token_offset(from, token) + head * shape[3], shape[3], values);
          write(to, cache_offset(to, load_integer(rows, b), head, position), shape[3], row);
        }
      }
    }
  }
}

void cached_attention(const KernelArguments& a, const KernelContext&) {
  const TensorView &q = a.inputs[0], &keys = a.inputs[1], &values = a.inputs[2], &out = a.outputs[0];
  const TensorView &positions = a.inputs[3], &lengths = a.inputs[4], &rows = a.inputs[5];
  const int64_t heads = q.shape[2], width = q.shape[3], group = heads / keys.shape[1];
  const int64_t slots = keys.shape[2], window = a.attributes->window;
  Scratch scratch(a.workspace);
  double *query_scratch = scratch.take(width), *row_scratch = scratch.take(width);
  double *total = scratch.take(width), *scores = scratch.take(slots);
  for (int64_t token = 0; token < q.shape.tokens(); ++token) {
    const int64_t b = token / q.shape[1], row = load_integer(rows, b);
    const bool counts = token % q.shape[1] < length_of(lengths, b, q.shape[1]);
    const int64_t position = counts ? load_integer(positions, token) : -1;
    const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    ATHANOR_ASSERT(position - first < slots, "position {} sees more than the {} slots", position, slots);
    for (int64_t h = 0; h < heads; ++h) {
      std::fill_n(total, width, 0.0);
      const double* query = read(q, token_offset(q, token) + h * width, width, query_scratch);
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t p = first; p <= position; ++p) {
        const double* key = read(keys, cache_offset(keys, row, h / group, p), width, row_scratch);
        double dot = 0;
        for (int64_t e = 0; e < width; ++e) dot += query[e] * key[e];
        scores[p - first] = a.attributes->scale * dot;
        maximum = std::max(maximum, scores[p - first]);
      }
      for (int64_t p = first; p <= position; ++p) {
        const double weight = std::exp(scores[p - first] - maximum);
        const double* value = read(values, cache_offset(values, row, h / group, p), width, row_scratch);
        sum += weight;
        for (int64_t e = 0; e < width; ++e) total[e] += weight * value[e];
      }
      for (int64_t e = 0; e < width && counts; ++e) total[e] /= sum;
      write(out, token_offset(out, token) + h * width, width, total);
    }
  }
}

void last_token(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &y = a.outputs[0];
  const int64_t width = x.shape.elements_per_token();
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    const int64_t length = length_of(a.inputs[1], b, x.shape[1]);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t from = token_offset(x, b * x.shape[1] + length - 1) + i;
      store(y, token_offset(y, b) + i, length > 0 ? load(x, from) : 0);
    }
  }
}

}  // namespace

void add_cache(KernelTable& table) {
  set_all(table, OperationKind::cache_write,
          {.run = cache_write, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(in[0].shape[3]);
           }});
  set_all(table, OperationKind::cached_attention,
          {.run = cached_attention, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(3 * in[0].shape[3] + in[1].shape[2]);
           }});
  set_all(table, OperationKind::last_token, {.run = last_token});
}

}  // namespace athanor::reference
