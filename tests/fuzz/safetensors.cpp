// Any bytes as a safetensors file: refused as a user error, or read in full, and then the header survives
// being written and read again.

#include "athanor/checkpoint/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/safetensors_header.h"
#include "unless_refused.h"

namespace {

void read_everything(athanor::FileEnvironment& files) {
  const auto file = athanor::SafetensorsFile::open(files, "file");
  const auto& header = file.header();
  int64_t end = 0;
  for (const auto& entry : header.tensors) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes()));
    file.read(entry, bytes);
    ATHANOR_ASSERT(entry.begin == end);
    ATHANOR_ASSERT(file.find(entry.name) == &entry);
    end = entry.end;
  }
  const std::string text = athanor::format_safetensors_header(header);
  const auto again = athanor::parse_safetensors_header(text, end, "again");
  ATHANOR_ASSERT(again.metadata == header.metadata);
  ATHANOR_ASSERT(std::ranges::equal(again.tensors, header.tensors, [](const auto& a, const auto& b) {
    return a.name == b.name && a.dtype_name == b.dtype_name && a.shape == b.shape && a.begin == b.begin &&
           a.end == b.end;
  }));
  file.verify();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  athanor::MemoryFileEnvironment files;
  const auto handle = files.create("file", {});
  handle->append(std::as_bytes(std::span(data, size)));
  handle->close();
  unless_refused([&] { read_everything(files); });
  return 0;
}
