#include "athanor/train/generate.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"

namespace athanor {

namespace {

// A prompt being continued in a row of the cache.
struct Sequence {
  size_t prompt = 0;
  std::vector<int32_t> tokens;  // all of it, prompt included
  int64_t held = 0;             // tokens in the cache; the last of `tokens` is not among them
  int64_t written = 0;
  RandomKey key{0, RandomPurpose::generation, uint64_t{0}};
};

class Generation {
 public:
  Generation(Engine& engine, std::span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
             const std::function<bool(size_t, int32_t)>& emit)
      : engine_(engine),
        prompts_(prompts),
        options_(options),
        emit_(emit),
        capacity_(engine.options().generation.capacity),
        rows_(static_cast<size_t>(engine.options().generation.rows)) {}

  GenerateReport run() {
    while (true) {
      for (size_t row = 0; row < rows_.size(); ++row) {
        while (!rows_[row] && next_ < prompts_.size()) begin(row);
      }
      if (std::none_of(rows_.begin(), rows_.end(), [](const auto& row) { return row.has_value(); }))
        return report_;
      const int64_t since = monotonic_ns();
      step();
      report_.seconds += seconds_of(monotonic_ns() - since);
    }
  }

 private:
  void begin(size_t row) {
    const std::vector<int32_t>& prompt = prompts_[next_];
    ATHANOR_ASSERT(!prompt.empty());
    const std::string_view bytes(reinterpret_cast<const char*>(prompt.data()),
                                 prompt.size() * sizeof(int32_t));
    rows_[row] = Sequence{next_++, prompt, 0, 0,
                          RandomKey(options_.sampling.seed, RandomPurpose::generation, stable_hash(bytes))};
    if (options_.length < 1) return rows_[row].reset();
    const int64_t since = monotonic_ns();
    const std::span<const double> logits = take_in(row, capacity_);
    report_.prompt_seconds += seconds_of(monotonic_ns() - since);
    report_.prompt_tokens += static_cast<int64_t>(prompt.size());
    draw(row, logits);
  }

  // Fills the row anew with the latest tokens of its sequence, at most `most`.
  std::span<const double> take_in(size_t row, int64_t most) {
    Sequence& sequence = *rows_[row];
    const auto all = std::span<const int32_t>(sequence.tokens);
    const auto seen = all.last(std::min(all.size(), static_cast<size_t>(most)));
    sequence.held = static_cast<int64_t>(seen.size());
    return engine_.prefill(static_cast<int64_t>(row), 0, seen);
  }

  // One more token for every sequence.
  void step() {
    std::vector<int32_t> tokens(rows_.size(), 0), positions(rows_.size(), -1);
    std::vector<size_t> full;
    bool any = false;
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (!rows_[row]) continue;
      if (rows_[row]->held == capacity_) {
        full.push_back(row);
        continue;
      }
      tokens[row] = rows_[row]->tokens.back();
      positions[row] = static_cast<int32_t>(rows_[row]->held++);
      any = true;
    }
    if (any) engine_.decode(tokens, positions);
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (positions[row] >= 0) draw(row, engine_.logits(static_cast<int64_t>(row)));
    }
    for (const size_t row : full) draw(row, take_in(row, (capacity_ + 1) / 2));
  }

  void draw(size_t row, std::span<const double> logits) {
    Sequence& sequence = *rows_[row];
    if (options_.vocabulary > 0)
      logits = logits.first(std::min(logits.size(), static_cast<size_t>(options_.vocabulary)));
    const int32_t token = draw_token(logits, options_.sampling, sequence.key, sequence.written++);
    ++report_.tokens;
    sequence.tokens.push_back(token);
    if (!emit_(sequence.prompt, token) || sequence.written == options_.length) rows_[row].reset();
  }

  Engine& engine_;
  std::span<const std::vector<int32_t>> prompts_;
  const GenerateOptions& options_;
  const std::function<bool(size_t, int32_t)>& emit_;
  int64_t capacity_;
  std::vector<std::optional<Sequence>> rows_;
  size_t next_ = 0;
  GenerateReport report_;
};

}  // namespace

int64_t context_limit(const ModelConfig& model, int64_t trained_length) {
  if (model.positions == PositionKind::rotary || trained_length <= 0) return model.maximum_positions;
  return std::min(model.maximum_positions, trained_length);
}

GenerateReport generate(Engine& engine, std::span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options, const std::function<bool(size_t, int32_t)>& emit) {
  return Generation(engine, prompts, options, emit).run();
}

}  // namespace athanor
