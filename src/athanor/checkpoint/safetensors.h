// safetensors files: reader with every check, streaming writer. docs/formats/safetensors.md has the bytes.
//
// Called by checkpoint.h and by whoever exchanges weights with other programs (several files that belong
// together: safetensors_shards.h). Errors: user errors with the path. Thread safety: a SafetensorsFile may be
// read from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/ir/dtype.h"

namespace athanor {

// A tensor to be written: row-major, in memory that must not change during the call.
struct TensorBytes {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// A tensor that is made while the file is written, so that one at a time need be in memory.
struct TensorProducer {
  using Sink = std::function<void(std::span<const std::byte>)>;
  std::string name;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  std::function<void(const Sink&)> produce;  // gives all bytes in order, in pieces of any length

  int64_t bytes() const;
};
TensorProducer producer_of(const TensorBytes& tensor);

// A tensor in a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as the format spells it
  std::optional<DType> dtype;  // none for types that only other programs use
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, counted from the start of the data
  int64_t bytes() const { return end - begin; }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their data
  SafetensorsMetadata metadata;
  int64_t data_offset = 0;  // of the data in the file
};

std::string_view safetensors_name_of(DType dtype);

// Checks a header text (without the length before it) against the length of the data behind it.
// Recursion and memory are bounded by the text. `path` is for messages only.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                           const std::string& path);

class SafetensorsFile {
 public:
  // Reads and checks the header.
  static SafetensorsFile open(FileEnvironment& files, const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null if there is none
  // Fills `out`, which has the tensor's size.
  void read(const SafetensorsEntry& entry, std::span<std::byte> out) const;
  // Fills `out` from the tensor's byte `offset` on; both lie within the tensor.
  void read_part(const SafetensorsEntry& entry, int64_t offset, std::span<std::byte> out) const;
  // CRC-32C of the tensor's bytes, read through a fixed buffer.
  uint32_t checksum(const SafetensorsEntry& entry) const;
  // Compares a computed checksum of a tensor with the stored one; a user error names file and tensor.
  void require_checksum(const SafetensorsEntry& entry, uint32_t computed) const;
  // Compares the checksums that write_safetensors stores, of the header and of every tensor. A user error
  // names the file and the tensor; a file without them is one too.
  void verify() const;
  void verify_header() const;  // of the header alone
  bool has_checksums() const;  // files of other programs have none

 private:
  const std::string& stored_checksum(const std::string& key) const;
  SafetensorsFile(std::unique_ptr<ReadableFile> file, std::string path, SafetensorsHeader header);

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Writes a file atomically, with checksums added to `metadata` (UTF-8). Tensors are laid out by falling
// element size, then name, and asked for in that order; their bytes go on to the file as they come: no copy
// of a tensor is made. Returns the bytes of the file.
int64_t stream_safetensors(FileEnvironment& files, const std::string& path,
                           std::span<const TensorProducer> tensors, const SafetensorsMetadata& metadata,
                           RenameMode rename = RenameMode::replace);
// The same from memory.
int64_t write_safetensors(FileEnvironment& files, const std::string& path,
                          std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                          RenameMode rename = RenameMode::replace);

}  // namespace athanor
