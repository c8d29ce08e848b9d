// What a file of tokens holds, read from end to end: what `athanor data inspect` shows.
//
// Called by the command. Thread safety: pure functions of the file system.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/input_files.h"
#include "athanor/data/token_source.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

struct Inspection {
  std::string path, format;
  std::string damage;  // of what could be read; empty: none. Numbers below are those up to there
  int64_t tokens = 0, documents = 0, unlearned_tokens = 0;
  int64_t vocabulary = 0;  // that the file states; 0: none
  uint32_t tokenizer = 0;  // identity that the file states; 0: none
  int32_t smallest_id = 0, largest_id = 0;
  int64_t distinct_ids = 0;
  // Tokens of documents: smallest, quantiles 0.1, 0.5, 0.9, 0.99 and largest, of up to 2^20 documents evenly
  // spaced.
  std::array<int64_t, 6> lengths{};
  std::vector<std::string> first_documents;  // decoded, cut to 200 bytes
};

// Reads everything of one file that is no text. Refuses (user error) what does not open.
Inspection inspect(FileEnvironment& files, const InputFile& input,
                   const std::shared_ptr<const Tokenizer>& tokenizer, int64_t shown_documents);

// Lines of text, as the command prints them.
std::string describe(const Inspection& inspection);

}  // namespace athanor
