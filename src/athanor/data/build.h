// Makes datasets of texts: what `athanor data build` does.
//
// Texts are encoded in segments of 64 MiB, each a token file of its own beside the output
// (PREFIX.building/), with a note of where in the texts it ended. A build that was killed goes on behind its
// last segment, and its output has the same bytes. At the end the segments are written out, split by
// document, and removed. Memory does not grow with the texts, but for the index of the token file that is
// being written. Errors: user errors. Thread safety: one build of a prefix at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/base/folder_lock.h"
#include "athanor/data/input_files.h"
#include "athanor/data/text_encoder.h"
#include "athanor/data/token_source.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

enum class DatasetFormat : uint8_t { athanor, megatron };

struct BuildOptions {
  std::vector<InputFile> inputs;  // texts and JSON lines; files of unknown kind are taken as text
  std::string output;             // PREFIX
  std::shared_ptr<const Tokenizer> tokenizer;
  TextOptions text;
  DatasetFormat format = DatasetFormat::athanor;
  DocumentSplit split;
  bool overwrite = false;                     // files of before
  int64_t segment_bytes = int64_t{64} << 20;  // of text
  // Takes sole use of the work folder until what it returns is gone, or throws.
  std::function<std::shared_ptr<const FolderLock>(const std::string& folder)> lock = {};
};

struct BuildProgress {
  int64_t bytes = 0, total_bytes = 0;  // of text
  int64_t resumed_bytes = 0;           // of them, done by a build before this one
  int64_t tokens = 0, documents = 0;
  int64_t written_tokens = 0;  // when all text is encoded: of `tokens`, in the files that stay
};

struct BuildReport {
  struct Part {
    std::string path;  // of an indexed dataset, its prefix
    int64_t documents = 0, tokens = 0;
  };
  std::vector<Part> parts;  // in the order train, validation, test; parts without a share are left out
  int64_t text_bytes = 0, tokens = 0, unlearned_tokens = 0, documents = 0;
  int64_t bad_line_count = 0;
  std::vector<std::string> bad_lines;  // the first few of this build
  std::string tokenizer_path;          // a copy of the tokenizer
  int64_t resumed_bytes = 0;
};

// Its work folder, which is empty after a build.
std::string work_folder(const BuildOptions& options);

// Writes PREFIX.tokens, or PREFIX.train.tokens, PREFIX.validation.tokens and PREFIX.test.tokens where there
// is a split (.bin and .idx for the format of Megatron), and PREFIX.tokenizer.json, which stays as it is if
// it gives the same ids. Refuses existing files unless `overwrite`, those that are inputs always, texts
// without a document, parts without one, and unlearned tokens in a format without them.
BuildReport build_dataset(FileEnvironment& files, const BuildOptions& options,
                          const std::function<void(const BuildProgress&)>& progress);

}  // namespace athanor
