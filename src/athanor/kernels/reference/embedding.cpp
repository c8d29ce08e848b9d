// Embedding: table lookup, and the gradient of the table.
#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

int64_t checked_id(const TensorView& ids, int64_t token, int64_t vocabulary) {
  const int64_t id = load_integer(ids, token_offset(ids, token));
  if (id < 0 || id >= vocabulary) {
    throw_user_error(fmt::format("token id {} is outside of the vocabulary of {}", id, vocabulary),
                     "use the tokenizer that the data was made with, or a model with its vocabulary size");
  }
  return id;
}

// Of a table that is a part of a larger one, rows [first, first + rows) are here; `extent` counts them all.
int64_t vocabulary_of(const KernelArguments& a, const TensorView& table) {
  return a.attributes->extent > 0 ? a.attributes->extent : table.shape[0];
}

void embedding(const KernelArguments& a, const KernelContext&) {
  const TensorView &table = a.inputs[0], &ids = a.inputs[1], &y = a.outputs[0];
  const int64_t vocabulary = vocabulary_of(a, table), width = table.shape[1];
  double* scratch = Scratch(a.workspace).take(width);
  for (int64_t token = 0; token < y.shape.tokens(); ++token) {
    const int64_t row = checked_id(ids, token, vocabulary) - a.first;
    if (row >= 0 && row < table.shape[0]) {
      write(y, token_offset(y, token), width, read(table, row * width, width, scratch));
    } else {
      std::fill_n(scratch, width, 0.0);
      write(y, token_offset(y, token), width, scratch);
    }
  }
}

// dtable row v (+)= sum of dy over the tokens whose id is first + v.
void embedding_gradient(const KernelArguments& a, const KernelContext&) {
  const TensorView &dy = a.inputs[0], &ids = a.inputs[1], &dtable = a.outputs[0];
  const int64_t vocabulary = vocabulary_of(a, dtable), width = dtable.shape[1], tokens = dy.shape.tokens();
  Scratch scratch(a.workspace);
  double *row = scratch.take(width), *total = scratch.take(width);
  for (int64_t token = 0; token < tokens; ++token) checked_id(ids, token, vocabulary);
  for (int64_t v = 0; v < dtable.shape[0]; ++v) {
    std::fill_n(total, width, 0.0);
    for (int64_t token = 0; token < tokens; ++token) {
      if (load_integer(ids, token_offset(ids, token)) != a.first + v) continue;
      const double* gradient = read(dy, token_offset(dy, token), width, row);
      for (int64_t i = 0; i < width; ++i) total[i] += gradient[i];
    }
    write(dtable, v * width, width, total, a.accumulate);
  }
}

}  // namespace

void add_embedding(KernelTable& table) {
  set_all(table, OperationKind::embedding,
          {.run = embedding, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(in[0].shape[1]);
           }});
  set_all(table, OperationKind::embedding_gradient,
          {.run = embedding_gradient, .workspace_bytes = [](const Attributes&, Types, Types out, int) {
             return doubles(2 * out[0].shape[1]);
           }});
}

}  // namespace athanor::reference
