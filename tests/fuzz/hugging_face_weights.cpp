// Any bytes as the weights of a tiny GPT-2: refused as a user error, or every parameter is read, imported and
// exported.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/hugging_face/exchange.h"
#include "athanor/hugging_face/weights.h"
#include "unless_refused.h"

namespace {

using namespace athanor;

constexpr std::string_view configuration =
    R"({"model_type":"gpt2","vocab_size":3,"n_positions":2,"n_embd":2,"n_layer":1,"n_head":1,"n_inner":3})";

void use(FileEnvironment& files) {
  const auto weights = HuggingFaceWeights::open(files, "in");
  ATHANOR_ASSERT(weights.entries().size() == 20);
  for (const WeightEntry& entry : weights.entries()) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.elements()) * size_of(DType::fp64));
    weights.read(entry, DType::fp64, bytes);
  }
  CheckpointFolder folder(files, "imported", {});
  const CheckpointWeights imported(Checkpoint::open(files, import_weights(weights, folder, {}).path));
  export_weights(files, imported, weights.config().model, "out", {.dtype = DType::fp16});
  ATHANOR_ASSERT(HuggingFaceWeights::open(files, "out").entries().size() == 20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFileEnvironment files;
  files.make_directories("in");
  write_file_atomically(files, "in/config.json", configuration);
  const auto handle = files.create("in/model.safetensors", {});
  handle->append(std::as_bytes(std::span(data, size)));
  handle->close();
  unless_refused([&] { use(files); });
  return 0;
}
