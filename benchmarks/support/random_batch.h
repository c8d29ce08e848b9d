// Batches for benchmarks: tokens drawn evenly from the vocabulary. What a batch holds does not change the
// work.
#pragma once

#include <string>

#include "athanor/base/philox.h"
#include "athanor/data/batch.h"
#include "athanor/model/config.h"

namespace athanor {

inline Batch random_batch(const ModelConfig& model, int64_t samples, int64_t sequence_length,
                          uint64_t number) {
  Batch batch;
  batch.samples = samples;
  batch.sequence_length = sequence_length;
  const RandomKey key(number, RandomPurpose::test, "bench");
  const auto tokens = static_cast<size_t>(samples * sequence_length);
  for (size_t i = 0; i < tokens; ++i) {
    const auto id = [&](size_t element) {
      return static_cast<int32_t>(random_word(key, element) % static_cast<uint64_t>(model.vocabulary));
    };
    batch.token_ids.push_back(id(2 * i));
    batch.labels.push_back(id(2 * i + 1));
    batch.positions.push_back(static_cast<int32_t>(i % static_cast<size_t>(sequence_length)));
    batch.documents.push_back(0);
  }
  batch.indices = whole_indices(samples, sequence_length);
  for (int64_t sample = 0; sample < samples; ++sample) batch.sample_ids.push_back(sample);
  return batch;
}

}  // namespace athanor
