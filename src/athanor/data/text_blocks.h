// Texts and JSON lines in blocks that can be encoded independently of each other, in order.
//
// A block of text is cut where encoding may begin anew with the same ids (Tokenizer::last_safe_cut), so that
// ids do not depend on blocks; JSON lines are cut between lines. Reading goes on from any place that a block
// ended at. Called by the encoder of texts. Errors: user errors with path and line. Thread safety: one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/crc32c.h"
#include "athanor/base/file_environment.h"
#include "athanor/data/input_files.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

// Where reading stands, between two blocks.
struct TextPlace {
  int64_t file = 0;    // of the list of files
  int64_t offset = 0;  // in it, bytes
  int64_t line = 0;    // JSON lines: lines before
  bool at_line_start = true;
  bool document_open = false;  // the document at hand has text already, and may have more
  friend bool operator==(const TextPlace&, const TextPlace&) = default;
};

struct TextBlock {
  InputKind kind = InputKind::text;
  std::string path = {};
  int64_t first_line = 0;  // JSON lines: number of the first one, from 1
  std::string bytes = {};  // JSON lines: whole lines
  // Text: stretches of `bytes` between separators. Only the first may go on from the block before, and only
  // the last may go on in the next; an empty stretch that ends a document ends one of a block before.
  struct Stretch {
    size_t begin = 0, end = 0;
    bool continued = false, ends_document = false;
  };
  std::vector<Stretch> stretches = {};
  int64_t input_bytes = 0;  // read for this block
  TextPlace after = {};
};

class TextBlocks {
 public:
  // Files of text and JSON lines. A line of a text that equals `separator` (a carriage return before the line
  // feed is allowed) ends a document and belongs to none; an empty separator cuts nothing. Every file ends
  // one.
  TextBlocks(FileEnvironment& files, std::vector<InputFile> inputs,
             std::shared_ptr<const Tokenizer> tokenizer, std::string separator, size_t block_bytes,
             TextPlace begin = {});

  // Refuses a stretch without a safe cut of more than 256 MiB, and a line of JSON of more than 64 MiB.
  std::optional<TextBlock> next();

 private:
  std::string read(size_t size) const;  // from the place on
  TextBlock text_block(const std::string& bytes, bool to_end) const;
  TextBlock line_block(const std::string& bytes, bool to_end) const;

  FileEnvironment& files_;
  const std::vector<InputFile> inputs_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::string separator_;
  const size_t block_bytes_;
  TextPlace place_;
  std::unique_ptr<ReadableFile> file_;  // the one of the place
};

}  // namespace athanor
