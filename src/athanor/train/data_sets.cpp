#include "athanor/train/data_sets.h"

#include <cmath>

#include "athanor/base/error.h"
#include "athanor/data/byte_vocabulary.h"
#include "athanor/data/token_file.h"

namespace athanor {

namespace {

Sampler make_sampler(const TokenSource& tokens, TokenRange range, const RunOptions& options,
                     const std::string& name, bool shuffle) {
  if (tokens.vocabulary_size() > options.model.vocabulary) {
    throw_user_error(fmt::format("the data set {} has ids up to {} and the model a vocabulary of {}", name,
                                 tokens.vocabulary_size() - 1, options.model.vocabulary),
                     fmt::format("set model.vocabulary to {} or more", tokens.vocabulary_size()));
  }
  return {range,
          {.sequence_length = options.data.sequence_length,
           .shuffle = shuffle,
           .seed = options.seed,
           .name = name}};
}

}  // namespace

std::shared_ptr<const TokenSource> open_tokens(FileEnvironment& files, const std::string& path,
                                               const DataOptions& options) {
  if (!path.ends_with(".txt")) return TokenFile::open(files, path);
  return TokenFile::open(files, prepare_token_file(files, path, options.cache, {options.separator}));
}

DataSets open_data_sets(FileEnvironment& files, const RunOptions& options, int64_t total_samples) {
  if (options.data.train.empty()) {
    throw_user_error("data.train is not set",
                     "name a text file (.txt) or a token file: --set data.train=FILE");
  }
  DataSets sets;
  const BatchOptions batch{options.data.reset_positions, options.data.mask_documents};
  const auto tokens = open_tokens(files, options.data.train, options.data);
  const auto split = split_tokens(tokens->token_count(), options.data.validation_fraction);
  const Sampler sampler = make_sampler(*tokens, split.train, options, "train", true);
  sets.train = std::make_shared<SampleSet>(tokens, sampler, batch);
  const auto max_epochs = static_cast<int64_t>(std::ceil(options.data.max_epochs));
  const DataReport plan = plan_epochs(*tokens, sampler, total_samples, max_epochs);
  // A limit between two whole numbers.
  const double epochs = static_cast<double>(total_samples) / static_cast<double>(plan.samples_per_epoch);
  if (options.data.max_epochs > 0 && epochs > options.data.max_epochs) {
    throw_user_error(fmt::format("the run needs {:.2f} epochs of its data, but at most {} are allowed: {}",
                                 epochs, options.data.max_epochs, describe(plan)),
                     "train on fewer samples, give more text, or raise data.max_epochs");
  }
  sets.report.push_back("train: " + describe(plan));
  const auto add_validation = [&](const std::string& name, std::shared_ptr<const TokenSource> source,
                                  TokenRange range) {
    for (const ValidationSet& other : sets.validation) {
      if (other.name != name) continue;
      throw_user_error(fmt::format("two validation sets have the name {}", name),
                       "data.validation_fraction makes one named \"validation\": give yours another name");
    }
    const Sampler in_order = make_sampler(*source, range, options, name, false);
    const int64_t samples = options.validation.samples > 0
                                ? std::min(options.validation.samples, in_order.samples_per_epoch())
                                : in_order.samples_per_epoch();
    sets.report.push_back(fmt::format("{}: {}", name, describe(plan_epochs(*source, in_order, samples, 0))));
    sets.validation.push_back({name, std::make_shared<SampleSet>(source, in_order, batch)});
  };
  if (options.data.validation_fraction > 0) add_validation("validation", tokens, split.validation);
  for (const auto& [name, path] : options.data.validation) {
    const auto source = open_tokens(files, path, options.data);
    add_validation(name, source, {0, source->token_count()});
  }
  return sets;
}

}  // namespace athanor
