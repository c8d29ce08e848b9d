// Any bytes as the index of two sound safetensors files: refused as a user error, or the files it names are
// read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/checkpoint/safetensors_shards.h"
#include "unless_refused.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace athanor;
  MemoryFileEnvironment files;
  const std::vector<std::byte> bytes(4);
  const TensorBytes a{"a", DType::fp32, {1}, bytes}, b{"b", DType::u8, {2, 2}, bytes};
  write_safetensors(files, "model-00001-of-00002.safetensors", {&a, 1}, {});
  write_safetensors(files, "model-00002-of-00002.safetensors", {&b, 1}, {});
  const auto handle = files.create("model.safetensors.index.json", {});
  handle->append(std::as_bytes(std::span(data, size)));
  handle->close();
  unless_refused([&] {
    const auto shards = SafetensorsShards::open(files, ".");
    for (const auto& [name, tensor] : shards.tensors()) ATHANOR_ASSERT(tensor.entry->bytes() == 4);
  });
  return 0;
}
