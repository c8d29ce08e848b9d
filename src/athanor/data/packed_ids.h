// Token ids as files hold them: little-endian numbers of one width, anywhere in memory.
//
// Called by the readers of token files. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "athanor/base/file_environment.h"

namespace athanor {

enum class IdType : uint8_t { u8, i8, i16, u16, i32, u32, i64 };

size_t width_of(IdType type);  // bytes
// Ids that the type can hold and an int32_t too: one more than the largest.
int64_t ids_of(IdType type);

// Unpacks out.size() ids. Returns out.size(), or the place of the first id that is negative or not below
// `vocabulary`; that one is then in `bad`.
size_t unpack_ids(std::span<const std::byte> bytes, IdType type, int64_t vocabulary, std::span<int32_t> out,
                  int64_t& bad);

// A checksum that tells files apart without reading all of them: CRC-32C of the length and, above 1 MiB, of
// 256 pieces of 4,096 bytes, evenly spaced from the first to the last.
uint32_t sampled_checksum(const ReadableFile& file);

}  // namespace athanor
