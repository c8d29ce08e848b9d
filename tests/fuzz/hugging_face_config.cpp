// Any bytes as config.json: refused as a user error, or the model survives being written and read again.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/hugging_face/config.h"
#include "athanor/model/config.h"

namespace {

using namespace athanor;

// Sizes that are given by others: what a key leaves out is told when it is written.
ModelConfig with_all_sizes(ModelConfig model) {
  model.key_value_heads = model.key_value_heads_or_default();
  model.head_dim = model.head_dim_or_default();
  model.feed_forward = model.feed_forward_or_default();
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  HuggingFaceConfig config;
  try {
    config = parse_hugging_face_config(text, "config.json");
  } catch (const Error& error) {
    ATHANOR_ASSERT(error.kind() == ErrorKind::user);
    ATHANOR_ASSERT(!error.hint().empty());
    return 0;
  }
  const DType dtype = config.dtype.value_or(DType::fp32);
  const auto again =
      parse_hugging_face_config(format_hugging_face_config(config.model, dtype, config.tokens), "again");
  ATHANOR_ASSERT(with_all_sizes(again.model) == with_all_sizes(config.model));
  ATHANOR_ASSERT(again.dtype == dtype && again.tokens == config.tokens);
  ATHANOR_ASSERT(again.notes.empty());
  return 0;
}
