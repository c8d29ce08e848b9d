#include "athanor/data/sample_mix.h"

#include <algorithm>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

std::vector<int64_t> weights_of(const std::vector<MixSource>& sources) {
  std::vector<std::string> weights;
  for (const MixSource& source : sources) weights.push_back(source.weight);
  return whole_weights(weights);
}

// What must be the same in all sources.
void check_sources(const std::vector<MixSource>& sources) {
  ATHANOR_ASSERT(!sources.empty());
  for (const MixSource& source : sources) {
    const SamplerOptions& a = source.samples->sampler().options();
    const SamplerOptions& b = sources.front().samples->sampler().options();
    ATHANOR_ASSERT(a.sequence_length == b.sequence_length && a.seed == b.seed && a.shuffle == b.shuffle &&
                   source.samples->is_packed() == sources.front().samples->is_packed());
  }
}

const SourcePosition* find(const std::vector<SourcePosition>& sources, const std::string& name) {
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const SourcePosition& source) { return source.name == name; });
  return found == sources.end() ? nullptr : &*found;
}

class Differences {
 public:
  template <class T>
  void compare(const std::string& what, const T& saved, const T& now) {
    if (saved != now) text_ += fmt::format("\n  {}: saved {}, now {}", what, saved, now);
  }
  bool any() const { return !text_.empty(); }
  void refuse_any(const std::string& hint) const {
    if (text_.empty()) return;
    throw_user_error(fmt::format("the run was saved with other data or another order of it:{}", text_), hint);
  }

 private:
  std::string text_;
};

}  // namespace

SampleMix::SampleMix(std::vector<MixSource> sources)
    : SampleMix(sources, 0, std::vector<int64_t>(sources.size()), BlendOrder(weights_of(sources)), {}) {}

SampleMix::SampleMix(std::vector<MixSource> sources, int64_t begin, std::vector<int64_t> before,
                     BlendOrder order, std::vector<SourcePosition> gone)
    : sources_(std::move(sources)),
      begin_(begin),
      before_(std::move(before)),
      order_(order),
      gone_(std::move(gone)) {
  check_sources(sources_);
}

int64_t SampleMix::vocabulary_size() const {
  int64_t largest = 0;
  for (const MixSource& source : sources_)
    largest = std::max(largest, source.samples->tokens().vocabulary_size());
  return largest;
}

SampleMix::Place SampleMix::place_of(int64_t sample) const {
  ATHANOR_ASSERT(sample >= begin_, "sample {} of a mix that begins at {}", sample, begin_);
  const BlendOrder::Draw draw = order_.draw(sample - begin_);
  return {draw.source, before_[draw.source] + draw.index};
}

int64_t SampleMix::most_of(size_t source, int64_t samples) const {
  return before_[source] + order_.most(source, std::max<int64_t>(0, samples - begin_));
}

Batch SampleMix::cut(std::span<const int64_t> sample_ids) const {
  Batch batch = empty_batch(sample_ids, sequence_length());
  for (size_t row = 0; row < sample_ids.size(); ++row) {
    if (sample_ids[row] == no_sample) continue;
    const Place place = place_of(sample_ids[row]);
    sources_[place.source].samples->cut_row(place.sample, static_cast<int64_t>(row), batch);
  }
  return batch;
}

DataPosition SampleMix::position(int64_t consumed) const {
  const SamplerOptions& options = sources_.front().samples->sampler().options();
  DataPosition position{.consumed_samples = consumed,
                        .sequence_length = options.sequence_length,
                        .seed = options.seed,
                        .shuffle = options.shuffle,
                        .packed = sources_.front().samples->is_packed(),
                        .mix_begin = begin_};
  const auto counts = order_.counts(consumed - begin_);
  for (size_t i = 0; i < sources_.size(); ++i) {
    position.sources.push_back({.name = sources_[i].name,
                                .weight = sources_[i].weight,
                                .identity = sources_[i].samples->tokens().identity(),
                                .range = sources_[i].samples->sampler().range(),
                                .before = before_[i],
                                .drawn = before_[i] + counts[i]});
  }
  position.sources.insert(position.sources.end(), gone_.begin(), gone_.end());
  return position;
}

SampleMix SampleMix::resumed(const DataPosition& saved, bool allow_change) const {
  const DataPosition now = position(begin_);
  Differences data, mix;
  data.compare("sequence_length", saved.sequence_length, now.sequence_length);
  data.compare("seed", saved.seed, now.seed);
  data.compare("shuffle", saved.shuffle, now.shuffle);
  data.compare("packed", saved.packed, now.packed);
  std::vector<SourcePosition> gone;
  for (const SourcePosition& source : saved.sources) {
    const SourcePosition* same = find(now.sources, source.name);
    if (same != nullptr) {
      data.compare(source.name + " data_identity", source.identity, same->identity);
      data.compare(source.name + " first_token", source.range.begin, same->range.begin);
      data.compare(source.name + " end_token", source.range.end, same->range.end);
    } else {
      gone.push_back(source);
      gone.back().weight.clear();
    }
    const std::string none = "not in the mix";
    mix.compare(source.name + " weight", source.weight.empty() ? none : source.weight,
                same != nullptr ? same->weight : none);
  }
  for (const SourcePosition& source : now.sources) {
    if (find(saved.sources, source.name) == nullptr)
      mix.compare(source.name + " weight", std::string("not in the mix"), source.weight);
  }
  data.refuse_any(
      "resume with the same data files, seed and sequence length, or begin a new run; in a blend, give "
      "changed data another name");

  const bool same_mix = !mix.any();
  if (!same_mix && !allow_change) {
    mix.refuse_any("give the sources and weights of before, or --change-data to go on with these");
  }
  const int64_t begin = same_mix ? saved.mix_begin : saved.consumed_samples;
  std::vector<int64_t> before, counts;
  for (const MixSource& source : sources_) {
    const SourcePosition* known = find(saved.sources, source.name);
    before.push_back(known == nullptr ? 0 : same_mix ? known->before : known->drawn);
    counts.push_back(same_mix && known != nullptr ? known->drawn - known->before : 0);
  }
  const int64_t place = saved.consumed_samples - begin;
  if (place < 0 || !order_.possible(place, counts)) {
    throw_user_error("the saved data position counts samples that its mix cannot have drawn",
                     "the checkpoint is damaged; take another one");
  }
  return {sources_, begin, std::move(before), BlendOrder(order_.weights(), place, std::move(counts)),
          std::move(gone)};
}

}  // namespace athanor
