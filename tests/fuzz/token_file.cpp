// Any bytes as a token file: as they are, with right checksums, which a fuzzer would never guess, and as a
// file of llm.c. Nothing but user errors may come of it, and what opens can be read and inspected.

#include "athanor/data/token_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/inspect.h"
#include "athanor/data/llmc_tokens.h"
#include "unless_refused.h"

namespace {

using namespace athanor;

template <class T>
T get(const std::string& bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Puts right checksums on whatever the header says, as far as that lies in the file.
void seal(std::string& bytes) {
  constexpr size_t header = 128;
  if (bytes.size() < header) return;
  const auto width = get<uint32_t>(bytes, 12);
  const auto tokens = get<uint64_t>(bytes, 16), block = get<uint64_t>(bytes, 40);
  const auto put = [&](size_t offset, uint32_t value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  };
  if (width != 0 && tokens <= (bytes.size() - header) / width) {
    const std::string_view all = bytes;
    const size_t end = header + tokens * width;
    const uint64_t blocks = block >= 4096 ? (tokens * width + block - 1) / block : 0;
    for (uint64_t i = 0; i < blocks && blocks * 4 <= bytes.size() - end; ++i) {
      const size_t begin = header + i * block;
      put(bytes.size() - (blocks - i) * 4, crc32c(all.substr(begin, std::min<size_t>(block, end - begin))));
    }
    put(48, crc32c(all.substr(end)));
  }
  put(124, crc32c(std::string_view(bytes).substr(0, 124)));
}

void use(FileEnvironment& files, const std::string& bytes) {
  write_file_atomically(files, "x", bytes);
  unless_refused([&] {
    const auto file = TokenFile::open(files, "x");
    const int64_t tokens = file->token_count();
    for (TokenRange rest{0, tokens}; rest.begin < rest.end;) {
      const TokenRange found = file->unlearned_in(rest);
      ATHANOR_ASSERT(rest.begin <= found.begin && found.begin <= found.end && found.end <= rest.end);
      rest.begin = found.size() > 0 ? found.end : rest.end;
    }
    for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
      if (tokens == 0) break;
      const Document document = file->document_at(token);
      ATHANOR_ASSERT(document.begin <= token && token < document.end && document.end <= tokens);
    }
    describe(inspect(files, {"x", InputKind::tokens}, nullptr, 2));
    file->verify();
  });
  unless_refused([&] {
    const auto file = LlmcTokens::open(files, "x", 1 << 20);
    std::vector<int32_t> ids(static_cast<size_t>(file->token_count()));
    file->read(0, ids);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  MemoryFileEnvironment files;
  use(files, bytes);
  seal(bytes);
  use(files, bytes);
  return 0;
}
