// Texts to tokens on several threads, in the order of the texts: the same for every number of threads.
//
// Called by whoever makes token files. Errors of any thread come out of next() at their place in the order:
// user errors with path and line. Thread safety: one thread calls, and the encoder has its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "athanor/data/text_blocks.h"
#include "athanor/data/text_records.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

struct TextOptions {
  std::string separator = {};  // see TextBlocks
  std::string field = "text";  // member of a line of JSON lines that holds plain text
  ChatTemplate chat = ChatTemplate::plain;
  bool skip_bad = false;                 // leave out lines that cannot be read, and count them
  int threads = 0;                       // 0: one for each core
  size_t block_bytes = size_t{1} << 20;  // of text that a thread takes at a time; changes no id
};

// The ids of one block. A document that has text is closed by one end-of-text token.
struct EncodedBlock {
  struct Stretch {
    size_t tokens = 0;
    bool learned = true, ends_document = false;
  };
  std::vector<int32_t> ids;
  std::vector<Stretch> stretches;
  std::vector<std::string> bad_lines;  // "PATH:LINE: what is wrong", the first few
  int64_t bad_line_count = 0;
  int64_t input_bytes = 0;
  TextPlace after;
};

class TextEncoder {
 public:
  // `inputs`: texts and JSON lines. Refuses a tokenizer without an end of text.
  TextEncoder(FileEnvironment& files, std::vector<InputFile> inputs,
              std::shared_ptr<const Tokenizer> tokenizer, const TextOptions& options, TextPlace begin = {});
  ~TextEncoder();
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;

  std::optional<EncodedBlock> next();

 private:
  // A block on its way from the text to next(). What its thread may need is there beforehand: outside of
  // encode() nothing can fail.
  struct Task {
    TextBlock text;
    EncodedBlock encoded = {};
    std::exception_ptr error = nullptr;
    bool begun = false, done = false;
  };
  void work();
  EncodedBlock encode(const TextBlock& block) const;
  void encode_text(const TextBlock& block, EncodedBlock& out) const;
  void encode_lines(const TextBlock& block, EncodedBlock& out) const;
  void end_document(bool learned, EncodedBlock& out) const;
  void read_ahead();

  std::shared_ptr<const Tokenizer> tokenizer_;
  TextOptions options_;
  TextRecordReader records_;
  TextBlocks blocks_;
  int32_t end_of_text_ = 0;
  bool exhausted_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // in the order of the text; a task stays in place while others come and go
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

// Puts blocks of one document after another into a writer with append(ids, learned) and end_document().
template <class Writer>
void write_block(const EncodedBlock& block, Writer& writer) {
  std::span<const int32_t> ids = block.ids;
  for (const EncodedBlock::Stretch& stretch : block.stretches) {
    writer.append(ids.first(stretch.tokens), stretch.learned);
    ids = ids.subspan(stretch.tokens);
    if (stretch.ends_document) writer.end_document();
  }
}

}  // namespace athanor
