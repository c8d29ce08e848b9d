// One record of JSON lines as parts of a document: text, prompt and answer, or a chat in a template.
//
// Called by the encoder of texts. Errors: user errors that say what is wrong with the record, without its
// place. Thread safety: values, used by any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/data/chat_template.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

// A stretch of a document that is encoded on its own.
struct TextPart {
  std::string text;
  bool learned = true;   // the model is asked to predict it
  bool special = false;  // `text` is the name of a special token
  friend bool operator==(const TextPart&, const TextPart&) = default;
};

struct TextRecord {
  std::vector<TextPart> parts;
  bool end_learned = true;  // the end of text that closes the document
};

class TextRecordReader {
 public:
  // `field`: the member that holds plain text. Refuses a template whose special tokens the tokenizer lacks.
  TextRecordReader(const Tokenizer& tokenizer, ChatTemplate chat, std::string field);

  // A JSON object with "messages" (a list of {"role", "content"}), with "prompt" and "answer", or with the
  // text field; the first of these that it has counts.
  TextRecord read(std::string_view json) const;

 private:
  void add_message(const std::string& role, const std::string& content, TextRecord& record) const;

  ChatTemplate chat_;
  std::string field_;
};

}  // namespace athanor
