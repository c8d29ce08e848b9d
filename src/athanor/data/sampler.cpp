#include "athanor/data/sampler.h"

#include <algorithm>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/base/plural.h"
#include "athanor/data/permutation.h"

namespace athanor {

int64_t windows_in(int64_t tokens, int64_t sequence_length) {
  ATHANOR_ASSERT(sequence_length >= 1);
  return std::max<int64_t>(0, tokens - 1) / sequence_length;
}

namespace {

SamplerOptions checked(SamplerOptions options) {
  if (options.sequence_length < 1) {
    throw_user_error(fmt::format("the sequence length is {}", options.sequence_length),
                     "it must be at least 1");
  }
  return options;
}

}  // namespace

Sampler::Sampler(TokenRange range, SamplerOptions options)
    : Sampler(range, checked(options), windows_in(range.size(), checked(options).sequence_length)) {}

Sampler::Sampler(TokenRange range, SamplerOptions options, int64_t windows)
    : range_(range), options_(checked(std::move(options))), samples_per_epoch_(windows) {
  ATHANOR_ASSERT(range.begin >= 0 && range.end >= range.begin);
  name_hash_ = stable_hash(options_.name);
  if (samples_per_epoch_ == 0) {
    throw_user_error(
        fmt::format(
            "the data set '{}' has {} tokens, which make 0 samples: one of sequence length {} needs {}",
            options_.name, range.size(), options_.sequence_length, options_.sequence_length + 1),
        "give more text, or lower the sequence length");
  }
}

Window Sampler::window(int64_t sample) const {
  ATHANOR_ASSERT(sample >= 0, "sample {}", sample);
  const int64_t epoch = sample / samples_per_epoch_;
  int64_t index = sample % samples_per_epoch_;
  if (options_.shuffle) {
    const RandomKey key(options_.seed, RandomPurpose::data_order, name_hash_, static_cast<uint64_t>(epoch));
    index = Permutation(samples_per_epoch_, key)(index);
  }
  return {.sample = sample,
          .epoch = epoch,
          .index = index,
          .first_token = range_.begin + index * options_.sequence_length};
}

std::string describe(const DataReport& report) {
  return fmt::format(
      "{} document{}, {} token{}, {} sample{} an epoch (sequence length {}); {} sample{} wanted: {} epoch{}",
      report.documents, plural(report.documents), report.tokens, plural(report.tokens),
      report.samples_per_epoch, plural(report.samples_per_epoch), report.sequence_length,
      report.requested_samples, plural(report.requested_samples), report.epochs_needed,
      plural(report.epochs_needed));
}

DataReport report_on(const TokenSource& tokens, const Sampler& sampler) {
  const TokenRange range = sampler.range();
  return {.documents = tokens.document_at(range.end - 1).number - tokens.document_at(range.begin).number + 1,
          .tokens = range.size(),
          .sequence_length = sampler.sequence_length(),
          .samples_per_epoch = sampler.samples_per_epoch()};
}

DataReport plan_epochs(const TokenSource& tokens, const Sampler& sampler, int64_t requested_samples,
                       int64_t max_epochs) {
  DataReport report = report_on(tokens, sampler);
  const int64_t per_epoch = sampler.samples_per_epoch();
  report.requested_samples = requested_samples;
  report.epochs_needed = requested_samples / per_epoch + (requested_samples % per_epoch != 0 ? 1 : 0);
  if (max_epochs > 0 && report.epochs_needed > max_epochs) {
    throw_user_error(
        fmt::format("the run needs {} epochs of its data, but at most {} are allowed: {}",
                    report.epochs_needed, max_epochs, describe(report)),
        "a sample is a window of tokens, not a document; train on fewer samples, give more text, "
        "or raise the limit");
  }
  return report;
}

}  // namespace athanor
