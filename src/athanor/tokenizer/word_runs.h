// Sorted runs of counted words on disk, for counts that do not fit into memory.
//
// Called by word_counts.cpp. A run holds words in the rising order of their bytes, each once: for each word,
// as LEB128 numbers, the length of the prefix it shares with the word before, the length of the rest, the
// rest, and its count. Runs are scratch files whose names are taken away before anything is written, so that
// nothing is left of them however the process ends. Thread safety: a run may be read from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"

namespace athanor {

class WordRun {
 public:
  using Visitor = std::function<void(std::string_view word, uint64_t count)>;

  // `write` is called once with a visitor that takes the words in their order.
  WordRun(FileEnvironment& files, std::string path, int64_t buffer_bytes,
          const std::function<void(const Visitor&)>& write);
  WordRun(const WordRun&) = delete;
  WordRun& operator=(const WordRun&) = delete;

  int64_t words() const { return words_; }
  int64_t bytes() const { return bytes_; }  // of the words
  void for_each(const Visitor& visit) const;

  // Visits every word of the runs once, in order, with its counts summed.
  static void merge(const std::vector<std::unique_ptr<WordRun>>& runs, const Visitor& visit);

 private:
  class Reader;

  const std::string path_;
  const int64_t buffer_bytes_;
  std::unique_ptr<ReadableFile> file_;
  int64_t size_ = 0;       // of the file
  uint32_t checksum_ = 0;  // of its bytes
  int64_t words_ = 0, bytes_ = 0;
};

}  // namespace athanor
