#include "athanor/train/data_sets.h"

#include <algorithm>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/data/blend.h"
#include "athanor/data/open_source.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

constexpr const char* single_source = "train";  // its name where there is no blend

// A blend's "WEIGHT:DATA".
struct WeightedData {
  std::string weight, data;
};

WeightedData split_weight(const std::string& name, const std::string& value) {
  const size_t colon = value.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == value.size()) {
    throw_user_error(fmt::format("data.blend.{} = \"{}\" is no weight and data", name, value),
                     "write WEIGHT:DATA, as 0.7:books.tokens");
  }
  const std::string weight = value.substr(0, colon);
  try {
    check_weight(weight);
  } catch (const Error& error) {
    throw_user_error(fmt::format("data.blend.{}: {}", name, error.message()), error.hint());
  }
  return {weight, value.substr(colon + 1)};
}

// Steps on such data would do nothing.
void require_learned_tokens(const TokenSource& tokens, TokenRange range, const std::string& name) {
  while (range.size() > 0) {
    const TokenRange unlearned = tokens.unlearned_in(range);
    if (unlearned.size() == 0 || unlearned.begin > range.begin) return;
    range.begin = unlearned.end;
  }
  throw_user_error(fmt::format("no token of the data set {} is marked as learned", name),
                   "give it answers of an assistant, or text, that the model is to predict");
}

class DataOpener {
 public:
  DataOpener(FileEnvironment& files, const RunOptions& options) : files_(files), options_(options) {
    source_.text = {.separator = options.data.separator,
                    .field = options.data.field,
                    .chat = options.data.chat,
                    .threads = options.threads};
    source_.tokenizer = open_tokenizer(files, options.data.tokenizer);
    source_.cache_directory = options.data.cache;
    source_.vocabulary_limit = options.model.vocabulary;
  }

  std::shared_ptr<const TokenSource> open(const std::string& name, const std::string& value) {
    auto tokens = open_source(files_, value, source_);
    if (tokens->vocabulary_size() > options_.model.vocabulary) {
      throw_user_error(fmt::format("the data set {} has ids up to {} and the model a vocabulary of {}", name,
                                   tokens->vocabulary_size() - 1, options_.model.vocabulary),
                       fmt::format("set model.vocabulary to {} or more", tokens->vocabulary_size()));
    }
    note_tokenizer(name, value, *tokens);
    return tokens;
  }

  // The samples of tokens [begin, end).
  std::shared_ptr<const SampleSet> samples(const std::shared_ptr<const TokenSource>& tokens, TokenRange range,
                                           const std::string& name, bool shuffle) const {
    const SamplerOptions sampler{.sequence_length = options_.data.sequence_length,
                                 .shuffle = shuffle,
                                 .seed = options_.seed,
                                 .name = name};
    if (options_.data.packing == Packing::documents) {
      return std::make_shared<const SampleSet>(SampleSet::packed(tokens, range, sampler));
    }
    return std::make_shared<const SampleSet>(
        tokens, Sampler(range, sampler),
        BatchOptions{options_.data.reset_positions, options_.data.mask_documents});
  }

  // That of the data, if it is known: named by token files, or as option.
  std::shared_ptr<const Tokenizer> tokenizer() const {
    const uint32_t chosen = source_.tokenizer->identity();
    if (identity_ != 0) {
      if (identity_ == chosen) return source_.tokenizer;
      return beside_;
    }
    const bool is_default = options_.data.tokenizer == DataOptions().tokenizer;
    return !is_default || vocabulary_ == source_.tokenizer->vocabulary_size() ? source_.tokenizer : nullptr;
  }

 private:
  // All data must have one tokenizer, and one that was named by the user must be it.
  void note_tokenizer(const std::string& name, const std::string& value, const TokenSource& tokens) {
    vocabulary_ = std::max(vocabulary_, tokens.vocabulary_size());
    const bool is_default = options_.data.tokenizer == DataOptions().tokenizer;
    uint32_t made_by = tokens.tokenizer_identity();
    // Formats of others name none: it is the one beside the data, unless the user has named one.
    const bool is_wanted =
        made_by == 0 ? is_default : made_by != source_.tokenizer->identity() && beside_ == nullptr;
    std::shared_ptr<const Tokenizer> beside = is_wanted ? find_beside(value, made_by) : nullptr;
    if (beside != nullptr) made_by = beside->identity();
    if (made_by == 0) return;
    if (!is_default && made_by != source_.tokenizer->identity()) {
      throw_user_error(
          fmt::format("the data set {} was made with another tokenizer ({:08x}) than data.tokenizer ({:08x})",
                      name, made_by, source_.tokenizer->identity()),
          "set data.tokenizer to the one it was made with, or make the data again");
    }
    if (identity_ != 0 && made_by != identity_) {
      throw_user_error(fmt::format("the data set {} was made with another tokenizer ({:08x}) than the data "
                                   "before it ({:08x})",
                                   name, made_by, identity_),
                       "make all data of a run with one tokenizer");
    }
    identity_ = made_by;
    if (beside != nullptr) beside_ = std::move(beside);
  }

  // The copy that is kept with prepared data, of the tokenizer that the data names if it names one:
  // PREFIX.tokenizer.json beside PREFIX, PREFIX.tokens or PREFIX.train.tokens.
  std::shared_ptr<const Tokenizer> find_beside(const std::string& value, uint32_t made_by) const {
    for (const InputFile& input : find_input_files(files_, value)) {
      std::string prefix = input.path;
      for (int endings = 0; endings <= 2; ++endings) {
        if (const std::string path = prefix + ".tokenizer.json"; files_.exists(path)) {
          auto tokenizer = open_tokenizer(files_, path);
          if (made_by == 0 || tokenizer->identity() == made_by) return tokenizer;
        }
        const size_t dot = prefix.rfind('.');
        if (dot == std::string::npos || prefix.find('/', dot) != std::string::npos) break;
        prefix.resize(dot);
      }
    }
    return nullptr;
  }

  FileEnvironment& files_;
  const RunOptions& options_;
  SourceOptions source_;
  uint32_t identity_ = 0;  // of the tokenizer that the data names
  int64_t vocabulary_ = 0;
  std::shared_ptr<const Tokenizer> beside_;
};

// Training, validation and test parts of one source.
struct Parts {
  struct Part {
    std::shared_ptr<const TokenSource> tokens;
    TokenRange range;
  };
  Part train, validation;
};

Parts split(const std::shared_ptr<const TokenSource>& tokens, const DataOptions& data) {
  const DocumentSplit split{.validation = data.validation_fraction, .test = data.test_fraction};
  validate(split);
  const int64_t count = tokens->token_count();
  if (data.split == SplitKind::tail || split.validation + split.test == 0) {
    const int64_t test = split_tokens(count, data.test_fraction).validation.size();
    const int64_t validation = split_tokens(count, data.validation_fraction).validation.size();
    const int64_t border = std::max<int64_t>(0, count - test - validation);
    return {{tokens, {0, border}}, {tokens, {border, std::min(count, border + validation)}}};
  }
  const auto subset = [&](DocumentSplit::Part part) -> Parts::Part {
    auto chosen = std::make_shared<const DocumentSubset>(
        tokens, [&](int64_t number) { return split.part_of(number) == part; });
    const int64_t end = chosen->token_count();
    return {std::move(chosen), {0, end}};
  };
  Parts parts{subset(DocumentSplit::Part::train), {tokens, {0, 0}}};
  if (split.validation > 0) parts.validation = subset(DocumentSplit::Part::validation);
  return parts;
}

std::string padding_text(const SampleSet& samples) {
  return samples.is_packed()
             ? fmt::format("; whole documents packed, {:.1f}% padding", 100 * samples.padding())
             : std::string();
}

}  // namespace

std::vector<std::string> plan_training(const SampleMix& mix, const DataOptions& options,
                                       int64_t total_samples) {
  std::vector<std::string> lines;
  const auto whole_limit = static_cast<int64_t>(std::ceil(options.max_epochs));
  for (size_t i = 0; i < mix.sources().size(); ++i) {
    const MixSource& source = mix.sources()[i];
    const int64_t wanted = mix.most_of(i, total_samples);
    const SampleSet& samples = *source.samples;
    const DataReport plan = plan_epochs(samples.tokens(), samples.sampler(), wanted, whole_limit);
    // A limit between two whole numbers.
    const double epochs = static_cast<double>(wanted) / static_cast<double>(plan.samples_per_epoch);
    if (options.max_epochs > 0 && epochs > options.max_epochs) {
      throw_user_error(
          fmt::format("the run needs {:.2f} epochs of its data, but at most {} are allowed: {}: {}", epochs,
                      options.max_epochs, source.name, describe(plan)),
          "train on fewer samples, give more text, or raise data.max_epochs");
    }
    const std::string weight =
        mix.sources().size() > 1 ? fmt::format(" (weight {})", source.weight) : std::string();
    lines.push_back(fmt::format("{}{}: {}{}", source.name, weight, describe(plan), padding_text(samples)));
  }
  return lines;
}

DataSets open_data_sets(FileEnvironment& files, const RunOptions& options, int64_t total_samples) {
  const DataOptions& data = options.data;
  if (data.train.empty() && data.blend.empty()) {
    throw_user_error("data.train is not set",
                     "name a text file (.txt) or a token file: --set data.train=FILE");
  }
  if (!data.train.empty() && !data.blend.empty()) {
    throw_user_error("data.train and data.blend are both set", "put all data into the blend");
  }
  std::map<std::string, WeightedData> wanted;
  if (!data.train.empty()) wanted[single_source] = {"1", data.train};
  for (const auto& [name, value] : data.blend) wanted[name] = split_weight(name, value);

  DataSets sets;
  DataOpener opener(files, options);
  const auto add_validation = [&](const std::string& name, const Parts::Part& part) {
    for (const ValidationSet& other : sets.validation) {
      if (other.name != name) continue;
      throw_user_error(fmt::format("two validation sets have the name {}", name),
                       "data.validation_fraction makes one named \"validation\": give yours another name");
    }
    auto in_order = opener.samples(part.tokens, part.range, name, false);
    const int64_t all = in_order->sampler().samples_per_epoch();
    const int64_t samples = options.validation.samples > 0 ? std::min(options.validation.samples, all) : all;
    const DataReport plan = plan_epochs(*part.tokens, in_order->sampler(), samples, 0);
    sets.report.push_back(fmt::format("{}: {}{}", name, describe(plan), padding_text(*in_order)));
    sets.validation.push_back({name, std::move(in_order)});
  };

  std::vector<MixSource> sources;
  std::vector<std::pair<std::string, Parts::Part>> kept_back;
  for (const auto& [name, source] : wanted) {
    const Parts parts = split(opener.open(name, source.data), data);
    if (parts.train.range.size() > 0) require_learned_tokens(*parts.train.tokens, parts.train.range, name);
    sources.push_back(
        {name, source.weight, opener.samples(parts.train.tokens, parts.train.range, name, true)});
    if (data.validation_fraction > 0)
      kept_back.emplace_back(data.blend.empty() ? "validation" : "validation-" + name, parts.validation);
  }
  sets.train = std::make_shared<const SampleMix>(std::move(sources));
  if (!options.resume) sets.report = plan_training(*sets.train, data, total_samples);
  sets.tokenizer = opener.tokenizer();
  for (const auto& [name, part] : kept_back) add_validation(name, part);
  for (const auto& [name, value] : data.validation) {
    const auto tokens = opener.open(name, value);
    add_validation(name, {tokens, {0, tokens->token_count()}});
  }
  return sets;
}

}  // namespace athanor
