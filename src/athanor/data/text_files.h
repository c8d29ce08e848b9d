// Token files made of texts, in one go, and kept for the next run.
//
// Called by train for texts that are trained on directly; `athanor data build` makes larger ones (build.h).
// Errors: user errors. Thread safety: functions of the file system.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/input_files.h"
#include "athanor/data/text_encoder.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

// The options of a token file that this tokenizer makes.
TokenFileOptions token_file_options(const Tokenizer& tokenizer);

// Writes the documents of texts and JSON lines, each followed by end of text. Refuses texts without one.
void encode_text_files(FileEnvironment& files, const std::vector<InputFile>& inputs,
                       const std::shared_ptr<const Tokenizer>& tokenizer, const TextOptions& options,
                       const std::string& token_path);

// The token file of these texts, made on the first call and found again later: in `cache_directory` under a
// name made of the texts' paths, sizes, times of change and contents (CRC-32C), the tokenizer and the
// options. A cached file that does not open or verify is made again. Returns its path.
std::string prepare_token_file(FileEnvironment& files, const std::vector<InputFile>& inputs,
                               const std::shared_ptr<const Tokenizer>& tokenizer, const TextOptions& options,
                               const std::string& cache_directory);

}  // namespace athanor
