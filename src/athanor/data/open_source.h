// Opens training data of any kind as one source of tokens.
//
// Called by train and the commands. Errors: user errors. Thread safety: functions of the file system.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/data/input_files.h"
#include "athanor/data/text_encoder.h"
#include "athanor/data/token_source.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

struct SourceOptions {
  std::shared_ptr<const Tokenizer> tokenizer;  // of texts
  TextOptions text;
  std::string cache_directory;  // for token files made of texts
  // Bounds the ids of formats that know no vocabulary.
  int64_t vocabulary_limit = std::numeric_limits<int32_t>::max();
};

// The files that `value` means (find_input_files), one after another. Texts that follow each other become one
// token file in the cache.
std::shared_ptr<const TokenSource> open_source(FileEnvironment& files, const std::string& value,
                                               const SourceOptions& options);

// One file that is no text.
std::shared_ptr<const TokenSource> open_token_input(FileEnvironment& files, const InputFile& input,
                                                    int64_t vocabulary_limit);

}  // namespace athanor
