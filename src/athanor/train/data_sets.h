// The data of a run: opens text and token files, cuts training and validation sets, says what they hold.
//
// Called by the loops. Thread safety: values; the sets may be read from several threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/batch.h"
#include "athanor/train/options.h"

namespace athanor {

struct ValidationSet {
  std::string name;
  std::shared_ptr<const SampleSet> samples;
};

struct DataSets {
  std::shared_ptr<const SampleSet> train;
  std::vector<ValidationSet> validation;
  std::vector<std::string> report;  // lines for the start of the run: documents, tokens, epochs
};

// `total_samples`: what the run will consume. User errors: missing, empty or damaged files, ids beyond the
// model's vocabulary, fewer tokens than one sample needs, more epochs than data.max_epochs.
DataSets open_data_sets(FileEnvironment& files, const RunOptions& options, int64_t total_samples);

// A text file is taken as bytes and turned into a token file in data.cache, once; a token file is opened.
std::shared_ptr<const TokenSource> open_tokens(FileEnvironment& files, const std::string& path,
                                               const DataOptions& options);

}  // namespace athanor
