// The documents of text files and JSON lines one after another, for training a tokenizer.
//
// Called by the command `tokenizer train`. Files of any size are read in pieces. Errors: user errors with
// path and line. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/input_files.h"
#include "athanor/data/text_records.h"
#include "athanor/tokenizer/train.h"

namespace athanor {

struct TextDocumentOptions {
  std::string separator = {};  // a line of a text that equals it ends a document; empty: a file is a document
  std::string field = "text";  // member of a line of JSON lines that holds plain text
};

class TextDocuments final : public TextSource {
 public:
  // Gives the next bytes of a stream, empty at its end.
  using Stream = std::function<std::string(size_t most)>;

  // Refuses inputs that are neither text nor JSON lines (text: also by content, whatever the name). `stream`,
  // if there is one, is a text that comes before the files.
  TextDocuments(FileEnvironment& files, std::vector<InputFile> inputs, TextDocumentOptions options,
                Stream stream = {});
  ~TextDocuments() override;

  int64_t file_bytes() const { return file_bytes_; }  // of all files

  Next next(std::string& text) override;

 private:
  struct Input {
    std::string path;
    InputKind kind = InputKind::text;
    Stream read;
  };
  bool open_next();
  bool fill();  // reads more of the input into buffer_; false at its end
  void drop_used();
  std::optional<Next> next_text(std::string& text);
  std::optional<Next> next_record(std::string& text);
  bool is_separator(std::string_view line) const;
  std::string take(size_t size);

  FileEnvironment& files_;
  const std::vector<InputFile> inputs_;
  const TextDocumentOptions options_;
  const TextRecordReader records_;
  Stream stream_;
  int64_t file_bytes_ = 0;

  size_t next_input_ = 0;
  std::optional<Input> input_;
  std::string buffer_;
  size_t begin_ = 0;               // of what is unread in buffer_
  bool input_ended_ = false;       // buffer_ holds its rest
  bool at_line_start_ = true;      // at begin_
  int64_t line_ = 0;               // JSON lines: number of the last one read
  std::deque<std::string> ready_;  // JSON lines: documents of a record
};

}  // namespace athanor
