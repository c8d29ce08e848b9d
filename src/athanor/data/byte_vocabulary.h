// The vocabulary of bytes: ids 0 to 255 are the bytes of a text, 256 ends a text. No training, no file.
//
// Called by whoever prepares a text or shows what a model writes. Thread safety: pure functions; the
// encoder by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"

namespace athanor::byte_vocabulary {

inline constexpr int32_t end_of_text = 256;
inline constexpr int64_t size = 257;

std::vector<int32_t> encode(std::string_view text);  // without end of text
// The bytes, whatever they mean as UTF-8; end of text is left out; an id outside the vocabulary is an error.
std::string decode(std::span<const int32_t> ids);

// Cuts a stream of text into documents. A line that equals `separator` (a carriage return before the line
// feed is allowed) ends a document and belongs to none; an empty separator cuts nothing.
class DocumentSplitter {
 public:
  // `text` receives the pieces of a document in order, `end` is called where one ends.
  DocumentSplitter(std::string separator, std::function<void(std::string_view)> text,
                   std::function<void()> end);
  void append(std::string_view piece);
  void finish();  // ends the last document

 private:
  void flush_held();

  std::string separator_;
  std::function<void(std::string_view)> text_;
  std::function<void()> end_;
  std::string held_;       // the beginning of a line that may yet be the separator
  bool candidate_ = true;  // so far this line could be
};

}  // namespace athanor::byte_vocabulary

namespace athanor {

struct TextFileOptions {
  std::string document_separator;  // see DocumentSplitter
};

// Reads a text file as bytes and writes the token file: each document that is not empty, followed by end of
// text. Streams: memory does not grow with the text. An empty text is refused. Returns the checksum of
// the text that was read.
uint32_t encode_text_file(FileEnvironment& files, const std::string& text_path, const std::string& token_path,
                          const TextFileOptions& options);

// The token file of a text, made on the first call and found again later: in `cache_directory` under a
// name made of the text's path, size, time of change, contents (CRC-32C) and separator. A cached file that
// does not open or verify is made again. Returns its path.
std::string prepare_token_file(FileEnvironment& files, const std::string& text_path,
                               const std::string& cache_directory, const TextFileOptions& options);

}  // namespace athanor
