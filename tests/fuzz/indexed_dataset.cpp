// Any bytes as the index of an indexed dataset, beside a .bin file of a few tokens; then any bytes as both.
// Nothing but user errors may come of it, and what opens can be read at every place.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/megatron_dataset.h"
#include "unless_refused.h"

namespace {

using namespace athanor;

void use(FileEnvironment& files) {
  const auto data = MegatronDataset::open(files, "x", 1 << 20);
  const int64_t tokens = data->token_count();
  constexpr int64_t most = 64;
  for (int64_t number = 0; number < std::min(most, data->document_count()); ++number) {
    const Document document = data->document(number);
    ATHANOR_ASSERT(0 <= document.begin && document.begin <= document.end && document.end <= tokens);
  }
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(tokens, most)));
  unless_refused([&] { data->read(0, ids); });
  unless_refused([&] { data->read(tokens - static_cast<int64_t>(ids.size()), ids); });
  if (tokens == 0 || data->document_count() == 0) return;
  for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
    const Document document = data->document_at(token);
    ATHANOR_ASSERT(document.begin <= token && token < document.end);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", std::string_view("\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0", 16));
  write_file_atomically(files, "x.idx", bytes);
  unless_refused([&] { use(files); });
  write_file_atomically(files, "x.bin", bytes);
  unless_refused([&] { use(files); });
  return 0;
}
