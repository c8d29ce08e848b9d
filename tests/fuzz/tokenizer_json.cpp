// Any bytes as the files of a tokenizer: refused as a user error, or the tokenizer takes every text and is
// the same when it is written and read again.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "unless_refused.h"

namespace {

using namespace athanor;

void use(TokenizerDefinition definition) {
  const auto tokenizer = std::make_shared<const Tokenizer>(std::move(definition));
  const std::string text = "It's  \xff text <s> a<|endoftext|>b \xe2\x96\x81 \xf0\x9f\x91\xa9 1234\r\n ";
  for (const bool special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer->encode(text, {.special_tokens = special});
    const std::string decoded = tokenizer->decode(ids);
    const bool exact = tokenizer->definition().form == TextForm::bytes && !special &&
                       tokenizer->definition().prefix == SpacePrefix::none;
    bool takes_along = false;
    for (const AddedToken& added : tokenizer->definition().added_tokens) {
      takes_along = takes_along || added.left_strip || added.right_strip;
    }
    if (exact && !takes_along) ATHANOR_ASSERT(decoded == text);
    IncrementalDecoder decoder(tokenizer);
    std::string joined;
    for (const int32_t id : ids) joined += decoder.append(id);
    ATHANOR_ASSERT(joined + decoder.finish() == decoded);
    const size_t cut = tokenizer->last_safe_cut(text, {.special_tokens = special});
    std::vector<int32_t> parts = tokenizer->encode(text.substr(0, cut), {.special_tokens = special});
    tokenizer->encode(text.substr(cut), parts, {.special_tokens = special, .continuation = cut > 0});
    ATHANOR_ASSERT(parts == ids);
  }
  const Tokenizer again(read_tokenizer_json(write_tokenizer_json(tokenizer->definition()), "again.json"));
  ATHANOR_ASSERT(again.identity() == tokenizer->identity());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  unless_refused([&] { use(read_tokenizer_json(text, "tokenizer.json")); });
  unless_refused([&] {
    use(read_vocabulary_json(text, "vocab.json",
                             [&] { return MergesText{"merges.txt", std::string(text)}; }));
  });
  unless_refused([&] { read_tokenizer_config(text, "tokenizer_config.json"); });
  return 0;
}
