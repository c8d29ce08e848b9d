#include "athanor/train/validation_pass.h"

#include <cmath>

namespace athanor {

std::optional<ValidationReport> validation_pass(Engine& engine, const ValidationSet& set,
                                                const BatchPart& part, int64_t samples, int64_t step,
                                                const std::function<bool()>& ended) {
  const ValidationBatches batches(set.samples, part.samples, samples);
  const PartReader reader(set.samples, part);
  double loss_sum = 0, tokens = 0;
  for (int64_t i = 0; i < batches.batch_count(); ++i) {
    const Engine::Evaluation sums = engine.evaluate(reader.cut(batches.sample_ids(i)));
    loss_sum += sums.loss_sum;
    tokens += sums.valid_tokens;
    if (ended()) return std::nullopt;
  }
  ValidationReport report{.step = step, .set = set.name, .tokens = static_cast<int64_t>(tokens)};
  if (tokens > 0) {
    report.loss = loss_sum / tokens;
    report.perplexity = std::exp(loss_sum / tokens);
  }
  return report;
}

}  // namespace athanor
