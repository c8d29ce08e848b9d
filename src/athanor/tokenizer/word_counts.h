// Counts the words of a text of any length, exactly, within a memory limit, on several threads.
//
// Called by train.h. Each thread counts pieces of the text in a table of its own. A table that is full is
// written to disk as a sorted run; runs are merged in the end, so that no word is ever left out.
// A word of more than `longest_counted_word` bytes counts as several, each as long as possible, cut between
// characters. The counts are the same for every number of threads, memory limit and order of the pieces.
// Thread safety: a call uses its own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/tokenizer/merge_learner.h"
#include "athanor/tokenizer/splitter.h"

namespace athanor {

constexpr int64_t longest_counted_word = 1024;  // bytes

// Text in which no word reaches across the ends, which rise to its size.
struct TextPiece {
  std::string text;
  std::vector<size_t> ends;
};

// Replaces `piece` by the next piece of text, of some mebibytes at most; false at the end. Called by one
// thread at a time.
using NextPiece = std::function<bool(TextPiece& piece)>;

struct WordCountOptions {
  SplitPattern pattern = SplitPattern::gpt2;
  int threads = 1;
  int64_t memory_bytes = 0;  // 0: no limit
  FileEnvironment* files = nullptr;
  std::string scratch;  // runs are files SCRATCH0, SCRATCH1 ...; used only with a memory limit
};

// Each thread takes half a mebibyte at least, whatever the limit. The result holds at most a quarter of the
// memory; larger ones are on disk until they are destroyed.
std::unique_ptr<WordSource> count_words(const NextPiece& next, const WordCountOptions& options);

}  // namespace athanor
