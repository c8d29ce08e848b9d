#include "athanor/data/packed_ids.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

// Calls `use` with a value of the C++ type.
template <class Use>
auto with_type(IdType type, Use&& use) {
  switch (type) {
    case IdType::u8:
      return use(uint8_t{});
    case IdType::i8:
      return use(int8_t{});
    case IdType::i16:
      return use(int16_t{});
    case IdType::u16:
      return use(uint16_t{});
    case IdType::i32:
      return use(int32_t{});
    case IdType::u32:
      return use(uint32_t{});
    case IdType::i64:
      break;
  }
  return use(int64_t{});
}

}  // namespace

size_t width_of(IdType type) {
  return with_type(type, []<class T>(T) { return sizeof(T); });
}

int64_t ids_of(IdType type) {
  return with_type(type, []<class T>(T) {
    constexpr auto most = uint64_t{std::numeric_limits<int32_t>::max()};
    return static_cast<int64_t>(std::min(most, uint64_t{std::numeric_limits<T>::max()} + 1));
  });
}

size_t unpack_ids(std::span<const std::byte> bytes, IdType type, int64_t vocabulary, std::span<int32_t> out,
                  int64_t& bad) {
  return with_type(type, [&]<class T>(T) {
    ATHANOR_ASSERT(bytes.size() >= out.size() * sizeof(T));
    for (size_t i = 0; i < out.size(); ++i) {
      T value{};
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      const auto id = static_cast<int64_t>(value);
      if (id < 0 || id >= vocabulary) {
        bad = id;
        return i;
      }
      out[i] = static_cast<int32_t>(id);
    }
    return out.size();
  });
}

// Reads rather than maps: page faults at random places would read ahead, and most of the file with it.
uint32_t sampled_checksum(const ReadableFile& file) {
  constexpr int64_t piece = 4096, pieces = 256;
  Crc32c checksum;
  const int64_t size = file.size();
  checksum.update(std::as_bytes(std::span(&size, 1)));
  std::vector<std::byte> buffer(static_cast<size_t>(size <= piece * pieces ? size : piece));
  const auto add = [&](int64_t offset) {
    file.read_at(offset, buffer);
    checksum.update(buffer);
  };
  if (size <= piece * pieces) {
    add(0);
    return checksum.value();
  }
  const int64_t last = size - piece, step = last / (pieces - 1), rest = last % (pieces - 1);
  for (int64_t i = 0; i < pieces; ++i) add(i * step + i * rest / (pieces - 1));
  return checksum.value();
}

}  // namespace athanor
