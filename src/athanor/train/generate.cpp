#include "athanor/train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"

namespace athanor {

int32_t draw_token(const std::vector<double>& logits, const GenerateOptions& options, int64_t draw) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t candidates =
      options.top_k > 0 ? std::min(order.size(), static_cast<size_t>(options.top_k)) : order.size();
  if (options.temperature <= 0) candidates = 1;
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(candidates), order.end(), likelier);
  if (candidates == 1) return order.front();
  std::vector<double> cumulative(candidates);
  const double most = logits[static_cast<size_t>(order.front())];
  double sum = 0;
  for (size_t i = 0; i < candidates; ++i) {
    sum += std::exp((logits[static_cast<size_t>(order[i])] - most) / options.temperature);
    cumulative[i] = sum;
  }
  const RandomKey key(options.seed, RandomPurpose::generation, "sample");
  const auto words = random_block(key, static_cast<uint64_t>(draw));
  const double at = uniform_double(words[0], words[1]) * sum;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), at) - cumulative.begin();
  return order[std::min(static_cast<size_t>(chosen), candidates - 1)];
}

void generate(Engine& engine, std::vector<int32_t> prompt, int64_t vocabulary, const GenerateOptions& options,
              const std::function<bool(int32_t)>& emit) {
  ATHANOR_ASSERT(!prompt.empty());
  const int64_t window = engine.options().sequence_length;
  for (int64_t draw = 0; draw < options.length; ++draw) {
    const int64_t used = std::min<int64_t>(window, static_cast<int64_t>(prompt.size()));
    Batch batch;
    batch.samples = 1;
    batch.sequence_length = window;
    batch.token_ids.assign(prompt.end() - used, prompt.end());
    batch.token_ids.resize(static_cast<size_t>(window), 0);  // what follows is not seen: attention is causal
    batch.labels.assign(static_cast<size_t>(window), ignored_label);
    batch.positions.resize(static_cast<size_t>(window));
    std::iota(batch.positions.begin(), batch.positions.end(), 0);
    batch.documents.assign(static_cast<size_t>(window), 0);
    batch.sample_ids = {0};
    std::vector<double> logits = engine.predict(batch, used - 1);
    logits.resize(static_cast<size_t>(std::min<int64_t>(vocabulary, static_cast<int64_t>(logits.size()))));
    const int32_t token = draw_token(logits, options, draw);
    prompt.push_back(token);
    if (!emit(token)) return;
  }
}

}  // namespace athanor
