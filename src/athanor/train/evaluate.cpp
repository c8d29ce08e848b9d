#include "athanor/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/data/batch_part.h"
#include "athanor/train/rank_layout.h"

namespace athanor {

namespace {

// Windows over `count` tokens from `begin` on, by number: inputs [first, first + length), labels one further,
// cut at the end. What is not scored has no label.
class Windows final : public SampleReader {
 public:
  Windows(const TokenSource& source, const EvaluateOptions& options, int64_t length)
      : source_(source), options_(options), length_(length) {
    const TokenRange all{0, source.token_count()};
    const TokenRange range = options.range.size() > 0 ? options.range : all;
    ATHANOR_ASSERT(range.begin >= 0 && range.end <= all.end);
    begin_ = range.begin;
    count_ = range.size();
    if (options.max_tokens > 0) count_ = std::min(count_, options.max_tokens);
    if (count_ < 2) {
      throw_user_error(fmt::format("the data has {} token{}", count_, plural(count_)),
                       "at least two are needed: the first one only serves to predict the second");
    }
    stride_ = options.stride > 0 ? options.stride : length;
    ATHANOR_ASSERT(stride_ <= length);
  }

  int64_t tokens() const { return count_ - 1; }  // to score
  // Windows until the last token has been scored.
  int64_t windows() const {
    return tokens() <= length_ ? 1 : 1 + (tokens() - length_ + stride_ - 1) / stride_;
  }

  Batch cut(std::span<const int64_t> windows) const override {
    Batch batch = empty_batch(windows, length_);
    // What fills up is a document of its own: masks compare positions, and its are as low as the first's.
    std::ranges::fill(batch.documents, std::numeric_limits<int32_t>::max());
    for (size_t row = 0; row < windows.size(); ++row) {
      if (windows[row] != no_sample) cut_row(windows[row], static_cast<int64_t>(row), batch);
    }
    return batch;
  }

 private:
  void cut_row(int64_t window, int64_t row, Batch& batch) const {
    const int64_t inputs = std::min(length_, tokens() - window * stride_);
    const int64_t first = begin_ + window * stride_;
    const auto at = static_cast<size_t>(row * length_), used = static_cast<size_t>(inputs);
    std::vector<int32_t> ids(used + 1);
    source_.read(first, ids);
    std::copy_n(ids.begin(), used, batch.token_ids.begin() + static_cast<int64_t>(at));
    cut_documents(first, inputs, at, batch);
    const int64_t from = window == 0 ? 0 : length_ - stride_;
    TokenRange unlearned = source_.unlearned_in({first + from + 1, first + inputs + 1});
    for (int64_t i = from; i < inputs; ++i) {
      const int64_t token = first + i + 1;  // the label
      if (token >= unlearned.end && unlearned.size() > 0)
        unlearned = source_.unlearned_in({token, first + inputs + 1});
      if (token >= unlearned.begin && token < unlearned.end) continue;
      batch.labels[at + static_cast<size_t>(i)] = ids[static_cast<size_t>(i) + 1];
    }
  }

  void cut_documents(int64_t first, int64_t inputs, size_t at, Batch& batch) const {
    const bool by_document = options_.reset_positions || options_.mask_documents;
    int64_t end = by_document ? source_.document_at(first).end : std::numeric_limits<int64_t>::max();
    int32_t position = 0, number = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      if (first + i == end) {
        end = source_.document_at(first + i).end;
        if (options_.mask_documents) ++number;
        if (options_.reset_positions) position = 0;
      }
      batch.positions[at + static_cast<size_t>(i)] = position++;
      batch.documents[at + static_cast<size_t>(i)] = number;
    }
  }

  const TokenSource& source_;
  const EvaluateOptions& options_;
  int64_t length_, begin_ = 0, count_ = 0, stride_ = 0;
};

void require_known_ids(const Batch& batch, int64_t vocabulary) {
  const auto [least, most] = std::minmax_element(batch.token_ids.begin(), batch.token_ids.end());
  const int32_t largest = std::max(*most, *std::max_element(batch.labels.begin(), batch.labels.end()));
  if (*least >= 0 && largest < vocabulary) return;
  throw_user_error(fmt::format("the data holds token {}, the model has a vocabulary of {}",
                               *least < 0 ? *least : largest, vocabulary),
                   "the data must be made with the model's tokenizer");
}

int64_t bytes_of_scored(const Batch& batch, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (const int32_t id : batch.labels) {
    if (id != ignored_label && !tokenizer.is_special(id))
      bytes += static_cast<int64_t>(tokenizer.token_bytes(id).size());
  }
  return bytes;
}

}  // namespace

double Scores::loss() const {
  return tokens > 0 ? loss_sum / static_cast<double>(tokens) : std::numeric_limits<double>::quiet_NaN();
}
double Scores::perplexity() const {
  return std::exp(loss());
}
double Scores::bits_per_byte() const {
  return bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(bytes)
                   : std::numeric_limits<double>::quiet_NaN();
}

Scores evaluate(Engine& engine, const TokenSource& source, const EvaluateOptions& options,
                const Tokenizer* tokenizer,
                const std::function<bool(int64_t done, int64_t total)>& progress) {
  const EngineOptions& own = engine.options();
  RankMessages messages(own.communicator);
  const Mesh& mesh = own.compile.layout.mesh;
  const BatchPart part = batch_part(own.model, own.compile.layout, messages.rank(),
                                    own.validation_micro_batch, own.sequence_length);
  const auto windows = std::make_shared<const Windows>(source, options, own.sequence_length);
  const PartReader reader(windows, part);
  // Ranks of an axis `tensor` have the same tokens: the first counts them.
  const bool counts =
      tokenizer != nullptr && coordinate(coordinates_of(mesh, messages.rank()), Axis::tensor) == 0;
  double bytes = 0;
  Scores scores;
  for (int64_t window = 0; window < windows->windows(); window += part.samples) {
    std::vector<int64_t> ids(static_cast<size_t>(part.samples), no_sample);
    const int64_t count = std::min(part.samples, windows->windows() - window);
    std::iota(ids.begin(), ids.begin() + count, window);
    const Batch batch = reader.cut(ids);
    require_known_ids(batch, own.model.vocabulary);
    if (counts) bytes += static_cast<double>(bytes_of_scored(batch, *tokenizer));
    const Engine::Evaluation sums = engine.evaluate(batch);
    scores.loss_sum += sums.loss_sum;
    scores.tokens += static_cast<int64_t>(sums.valid_tokens);
    if (messages.any(progress && !progress(scores.tokens, windows->tokens()))) break;
  }
  messages.all_sum({&bytes, 1});
  if (tokenizer != nullptr) scores.bytes = static_cast<int64_t>(bytes);
  return scores;
}

}  // namespace athanor
