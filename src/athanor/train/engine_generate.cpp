// The engine's programs that continue sequences: tokens into the key-value cache, logits out.

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/train/engine.h"

namespace athanor {

GenerationShape GenerationShape::of(int64_t rows, int64_t capacity) {
  GenerationShape shape{rows, capacity, {}};
  for (const int64_t length : {16, 64, 256}) {
    shape.prefill_lengths.push_back(std::min(length, capacity));
    if (length >= capacity) break;
  }
  return shape;
}

std::span<const double> Engine::prefill(int64_t row, int64_t position, std::span<const int32_t> tokens) {
  const GenerationShape& shape = options_.generation;
  const auto total = static_cast<int64_t>(tokens.size());
  ATHANOR_ASSERT(
      row >= 0 && row < shape.rows && total > 0 && position >= 0 && position + total <= shape.capacity,
      "{} tokens at {} in row {} of {} with {}", total, position, row, shape.rows, shape.capacity);
  size_t index = 0;
  for (int64_t done = 0; done < total;) {
    // The shortest part that takes the rest, or the longest there is.
    const int64_t rest = total - done;
    int64_t length = *std::max_element(shape.prefill_lengths.begin(), shape.prefill_lengths.end());
    for (const int64_t candidate : shape.prefill_lengths) {
      if (candidate >= rest) length = std::min(length, candidate);
    }
    const int64_t count = std::min(rest, length);
    std::vector<int32_t> ids(static_cast<size_t>(length), 0), positions(static_cast<size_t>(length), 0);
    for (int64_t i = 0; i < count; ++i) {
      ids[static_cast<size_t>(i)] = tokens[static_cast<size_t>(done + i)];
      positions[static_cast<size_t>(i)] = static_cast<int32_t>(position + done + i);
    }
    const auto part_length = static_cast<int32_t>(count), cache_row = static_cast<int32_t>(row);
    HostBatch batch;
    batch.token_ids = ids.data();
    batch.positions = positions.data();
    batch.lengths = &part_length;
    batch.cache_rows = &cache_row;
    StepInputs inputs;
    inputs.micro_batches = {batch};
    index = program_index(ProgramKind::prefill, 1, length);
    executor_->run(index, inputs);
    done += count;
  }
  return widen_logits(index, 0);
}

void Engine::decode(std::span<const int32_t> tokens, std::span<const int32_t> positions) {
  const GenerationShape& shape = options_.generation;
  const auto rows = static_cast<size_t>(shape.rows);
  ATHANOR_ASSERT(tokens.size() == rows && positions.size() == rows);
  std::vector<int32_t> ids(rows, 0), places(rows, 0), lengths(rows, 0), cache_rows(rows, 0);
  for (size_t row = 0; row < rows; ++row) {
    cache_rows[row] = static_cast<int32_t>(row);
    if (positions[row] < 0) continue;
    ATHANOR_ASSERT(positions[row] < shape.capacity, "position {} of {}", positions[row], shape.capacity);
    ids[row] = tokens[row];
    places[row] = positions[row];
    lengths[row] = 1;
  }
  HostBatch batch;
  batch.token_ids = ids.data();
  batch.positions = places.data();
  batch.lengths = lengths.data();
  batch.cache_rows = cache_rows.data();
  StepInputs inputs;
  inputs.micro_batches = {batch};
  executor_->run(program_index(ProgramKind::decode, 1, 1), inputs);
}

std::span<const double> Engine::logits(int64_t row) {
  return widen_logits(program_index(ProgramKind::decode, 1, 1), row);
}

std::span<const double> Engine::widen_logits(size_t index, int64_t row) {
  const auto bytes = executor_->transient(index, "logits");
  const StepProgram& program = set_->programs[index];
  const int64_t vocabulary = options_.model.vocabulary;
  const DType dtype =
      static_cast<int64_t>(bytes.size()) == program.micro_batch * vocabulary * 8 ? DType::fp64 : DType::fp32;
  const size_t row_bytes = static_cast<size_t>(vocabulary) * size_of(dtype);
  logits_.resize(static_cast<size_t>(vocabulary));
  convert_floats(dtype, bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes), DType::fp64,
                 std::as_writable_bytes(std::span(logits_)));
  return logits_;
}

}  // namespace athanor
