// The data of a run: opens texts and tokens of all kinds, cuts training and validation sets, says what they
// hold.
//
// Called by the loops. Thread safety: values; the sets may be read from several threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/sample_mix.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/train/options.h"

namespace athanor {

struct ValidationSet {
  std::string name;
  std::shared_ptr<const SampleSet> samples;
};

struct DataSets {
  std::shared_ptr<const SampleMix> train;
  std::vector<ValidationSet> validation;
  std::shared_ptr<const Tokenizer> tokenizer;  // of the training data; none if it is not known
  std::vector<std::string> report;             // lines for the start of the run: what the data is
};

// `total_samples`: what the run will consume. User errors: missing, empty or damaged files, ids beyond the
// model's vocabulary, data of different tokenizers, fewer tokens than one sample needs and, unless the run is
// resumed (when plan_training is called with the mix that goes on), more epochs than data.max_epochs.
DataSets open_data_sets(FileEnvironment& files, const RunOptions& options, int64_t total_samples);

// Lines about each source: documents, tokens, epochs that the whole run needs. User error: more than
// data.max_epochs of any source.
std::vector<std::string> plan_training(const SampleMix& mix, const DataOptions& options,
                                       int64_t total_samples);

}  // namespace athanor
