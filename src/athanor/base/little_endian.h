// Numbers as bytes, the least byte first: in files and messages, whatever the order of the machine.
//
// Called by comm, store and observe. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace athanor {

template <class Number>
void append_little_endian(std::string& bytes, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i)
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i)));
}

// At bytes [at, at + sizeof(Number)), which must be there.
template <class Number>
void put_little_endian(std::span<std::byte> bytes, size_t at, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i)
    bytes[at + i] = static_cast<std::byte>(static_cast<uint64_t>(number) >> (8 * i));
}

template <class Number>
Number little_endian_at(std::span<const std::byte> bytes, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) number |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<Number>(number);
}

}  // namespace athanor
