// Any bytes as JSON lines, in every template: documents come of it or a user error, and each document ends
// once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/text_encoder.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace {

using namespace athanor;

// Bytes, with the special tokens that the templates need.
std::shared_ptr<const Tokenizer> chat_tokenizer() {
  TokenizerDefinition definition = open_tokenizer(system_files(), "bytes")->definition();
  int32_t id = 257;
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"}) {
    definition.added_tokens.push_back({.id = id++, .content = name});
  }
  return std::make_shared<const Tokenizer>(std::move(definition));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const Tokenizer> tokenizer = chat_tokenizer();
  MemoryFileEnvironment files;
  write_file_atomically(files, "x", std::string_view(reinterpret_cast<const char*>(data), size));
  for (const ChatTemplate chat : {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3}) {
    for (const bool skip_bad : {false, true}) {
      try {
        TextEncoder encoder(files, {{"x", InputKind::json_lines}}, tokenizer,
                            {.chat = chat, .skip_bad = skip_bad, .threads = 1});
        while (const auto block = encoder.next()) {
          int64_t ends = 0;
          for (const auto& stretch : block->stretches) ends += stretch.ends_document ? 1 : 0;
          ATHANOR_ASSERT(std::count(block->ids.begin(), block->ids.end(), 256) == ends);
        }
      } catch (const Error& error) {
        ATHANOR_ASSERT(error.kind() == ErrorKind::user && !error.hint().empty());
        ATHANOR_ASSERT(!skip_bad);
      }
    }
  }
  return 0;
}
