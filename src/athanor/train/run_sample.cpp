#include "athanor/train/run_sample.h"

#include <optional>
#include <utility>
#include <vector>

#include "athanor/checkpoint/weight_reader.h"
#include "athanor/train/generate.h"
#include "athanor/train/load_weights.h"

namespace athanor {

GenerationShape sample_shape(const RunOptions& options) {
  return GenerationShape::of(1, options.data.sequence_length);
}

std::string write_sample(Engine& engine, const Tokenizer& tokenizer, const RunOptions& options,
                         const std::function<bool()>& ended) {
  const SampleOptions& sample = options.sample;
  const std::string prompt = sample.prompt.empty() ? "\n" : sample.prompt;
  const std::optional<int32_t> end_of_text = tokenizer.end_of_text();
  const std::vector<std::vector<int32_t>> prompts{tokenizer.encode(prompt)};
  std::vector<int32_t> ids;
  generate(engine, prompts,
           {.length = sample.length,
            .vocabulary = tokenizer.vocabulary_size(),
            .sampling = {.temperature = sample.temperature, .top_k = sample.top_k, .seed = options.seed}},
           [&](size_t, int32_t token) {
             if (token == end_of_text || ended()) return false;
             ids.push_back(token);
             return true;
           });
  return prompt + tokenizer.decode(ids, {.continuation = true});
}

std::unique_ptr<Engine> reread_whole(const RunOptions& options, Checkpoint checkpoint, bool averaged) {
  EngineOptions whole;
  whole.model = options.model;
  whole.compile = options.compile;
  whole.compile.layout = {};
  whole.compile.zero_stage = 0;
  whole.kernels = options.kernels;
  whole.threads = options.threads;
  whole.seed = options.seed;
  whole.sequence_length = options.data.sequence_length;
  whole.micro_batch_counts.clear();
  whole.generation = sample_shape(options);
  auto engine = std::make_unique<Engine>(whole);
  engine->allocate();
  load_weights(*engine, CheckpointWeights(std::move(checkpoint)), averaged);
  return engine;
}

}  // namespace athanor
