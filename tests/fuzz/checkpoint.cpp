// Any bytes as a checkpoint in a folder, as they are and, if they are a safetensors file, with right
// checksums, which a fuzzer would never guess; then a save beside it. Nothing but user errors may come of it.

#include "athanor/checkpoint/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/safetensors.h"
#include "unless_refused.h"

namespace {

using namespace athanor;

// The same tensors and metadata as in `from`, as this program writes them.
void write_with_checksums(FileEnvironment& files, const std::string& from, const std::string& to) {
  const auto file = SafetensorsFile::open(files, from);
  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorBytes> tensors;
  for (const auto& entry : file.header().tensors) {
    if (!entry.dtype) continue;
    auto& bytes = storage.emplace_back(static_cast<size_t>(entry.bytes()));
    file.read(entry, bytes);
    tensors.push_back({entry.name, *entry.dtype, entry.shape, bytes});
  }
  write_safetensors(files, to, tensors, file.header().metadata);
}

void use(FileEnvironment& files) {
  CheckpointFolder folder(files, "run", {.keep_last = 1});
  unless_refused([&] {
    const LatestCheckpoint latest = folder.find_latest();
    if (!latest.checkpoint) return;
    std::vector<std::byte> bytes(16);
    const std::vector<TensorTarget> targets = {{"w", DType::fp32, {2, 2}, bytes}};
    latest.checkpoint->load(targets, LoadMode::relaxed);
    unless_refused([&] { latest.checkpoint->load(targets, LoadMode::strict); });
  });
  unless_refused([&] { folder.save(7, {}, {{"progress", "none"}}); });
  const LatestCheckpoint latest = folder.find_latest();
  ATHANOR_ASSERT(latest.checkpoint.has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFileEnvironment files;
  files.make_directories("run");
  const auto handle = files.create("run/step_00000007.safetensors", {});
  handle->append(std::as_bytes(std::span(data, size)));
  handle->close();
  const std::string text(reinterpret_cast<const char*>(data), size);
  write_file_atomically(files, "run/latest", text);
  unless_refused(
      [&] { write_with_checksums(files, "run/step_00000007.safetensors", "run/step_00000006.safetensors"); });
  use(files);
  return 0;
}
