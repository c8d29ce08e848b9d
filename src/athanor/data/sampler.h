// Which tokens a sample is made of: a pure function of (seed, epoch, index), so of the global sample id.
//
// A sample is a window of sequence_length + 1 tokens (inputs and, shifted by one, labels); windows start
// every sequence_length tokens, so every token but the last few of the range is an input once an epoch. Or it
// is a window of packed documents (packing.h), of which the sampler knows the number only.
// Sample ids count on over epochs: id = epoch * samples_per_epoch + index. Each epoch has its own order.
// Nothing depends on batch sizes, ranks or threads. Called by batch and train. Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>

#include "athanor/data/token_source.h"

namespace athanor {

struct SamplerOptions {
  int64_t sequence_length = 0;  // inputs of a sample, >= 1
  bool shuffle = true;          // validation reads in file order
  uint64_t seed = 0;
  std::string name = "train";  // data sets with other names get other orders
};

struct Window {
  int64_t sample = 0;  // the global id
  int64_t epoch = 0;
  int64_t index = 0;        // of the window, in the order of the data
  int64_t first_token = 0;  // of the stream: the window is [first_token, first_token + sequence_length + 1)
};

// Windows in a range of `tokens` tokens: floor((tokens - 1) / sequence_length), never negative.
int64_t windows_in(int64_t tokens, int64_t sequence_length);

class Sampler {
 public:
  // Refuses (user error, with the numbers) a range that does not hold one window.
  Sampler(TokenRange range, SamplerOptions options);
  // For windows that were cut otherwise; refuses 0 of them.
  Sampler(TokenRange range, SamplerOptions options, int64_t windows);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  int64_t sequence_length() const { return options_.sequence_length; }
  TokenRange range() const { return range_; }
  const SamplerOptions& options() const { return options_; }
  // Any id >= 0.
  Window window(int64_t sample) const;

 private:
  TokenRange range_;
  SamplerOptions options_;
  uint64_t name_hash_ = 0;
  int64_t samples_per_epoch_ = 0;
};

// What is printed at the start, so that nobody is surprised by the number of epochs.
struct DataReport {
  int64_t documents = 0, tokens = 0;  // documents that the range touches, tokens in it
  int64_t sequence_length = 0, samples_per_epoch = 0;
  int64_t requested_samples = 0;
  int64_t epochs_needed = 0;  // rounded up
};
std::string describe(const DataReport& report);  // one line

// Documents and tokens that a sampler draws from; no samples are requested yet.
DataReport report_on(const TokenSource& tokens, const Sampler& sampler);

// Counts epochs for `requested_samples`; refuses (user error, with the report) more than `max_epochs`;
// 0 means no limit.
DataReport plan_epochs(const TokenSource& tokens, const Sampler& sampler, int64_t requested_samples,
                       int64_t max_epochs);

}  // namespace athanor
