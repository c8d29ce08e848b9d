#include "athanor/checkpoint/safetensors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/checkpoint/safetensors_header.h"

namespace athanor {
namespace {

constexpr int64_t largest_header = 100'000'000;
constexpr int64_t length_bytes = 8;
constexpr size_t piece_bytes = size_t{4} << 20;

constexpr std::string_view checksum_prefix = "athanor.crc32c.";
constexpr std::string_view header_checksum_key = "athanor.header_crc32c";
constexpr std::string_view empty_checksum = "00000000";

std::string checksum_key(std::string_view name) {
  return fmt::format("{}{}", checksum_prefix, name);
}
std::string checksum_text(uint32_t value) {
  return fmt::format("{:08x}", value);
}

// The checksum of what the header means, independent of its layout as JSON.
uint32_t header_checksum(const SafetensorsHeader& header) {
  Crc32c checksum;
  const auto number = [&](int64_t value) { checksum.update(std::as_bytes(std::span(&value, 1))); };
  const auto text = [&](std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    checksum.update(value);
  };
  for (const auto& [key, value] : header.metadata) {
    if (key == header_checksum_key) continue;
    text(key);
    text(value);
  }
  for (const auto& entry : header.tensors) {
    text(entry.name);
    text(entry.dtype_name);
    number(static_cast<int64_t>(entry.shape.size()));
    for (const int64_t size : entry.shape) number(size);
    number(entry.begin);
    number(entry.end);
  }
  return checksum.value();
}

struct Placed {
  SafetensorsEntry entry;
  const TensorProducer* producer = nullptr;
};

// Gives every tensor its place: falling element size, then name.
std::vector<Placed> lay_out(std::span<const TensorProducer> tensors) {
  std::vector<const TensorProducer*> order;
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    ATHANOR_ASSERT(names.insert(tensor.name).second, "two tensors have the name '{}'", tensor.name);
    ATHANOR_ASSERT(tensor.name != safetensors_metadata_key);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorProducer* a, const TensorProducer* b) {
    const size_t size_a = size_of(a->dtype), size_b = size_of(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  std::vector<Placed> placed;
  int64_t offset = 0;
  for (const TensorProducer* tensor : order) {
    const int64_t bytes = tensor->bytes();
    placed.push_back({.entry = {.name = tensor->name,
                                .dtype_name = std::string(safetensors_name_of(tensor->dtype)),
                                .dtype = tensor->dtype,
                                .shape = tensor->shape,
                                .begin = offset,
                                .end = offset + bytes},
                      .producer = tensor});
    offset += bytes;
  }
  // Only tensors without elements, which share their place, may move: a reader lists them by name.
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return in_data_order(a.entry, b.entry); });
  return placed;
}

}  // namespace

int64_t TensorProducer::bytes() const {
  auto bytes = static_cast<int64_t>(size_of(dtype));
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

TensorProducer producer_of(const TensorBytes& tensor) {
  TensorProducer producer{tensor.name, tensor.dtype, tensor.shape,
                          [view = tensor.bytes](const TensorProducer::Sink& sink) { sink(view); }};
  ATHANOR_ASSERT(producer.bytes() == static_cast<int64_t>(tensor.bytes.size()),
                 "'{}': {} bytes for a shape of {}", tensor.name, tensor.bytes.size(), producer.bytes());
  return producer;
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<ReadableFile> file, std::string path,
                                 SafetensorsHeader header)
    : file_(std::move(file)), path_(std::move(path)), header_(std::move(header)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

SafetensorsFile SafetensorsFile::open(FileEnvironment& files, const std::string& path) {
  auto file = files.open(path);
  if (file->size() < length_bytes) {
    refuse_safetensors(path,
                       fmt::format("it has {} bytes, fewer than the 8 of a header length", file->size()));
  }
  uint64_t length = 0;
  file->read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  const int64_t rest = file->size() - length_bytes;
  if (length == 0) refuse_safetensors(path, "it has no header: it was never finished");
  if (length > static_cast<uint64_t>(std::min(largest_header, rest))) {
    refuse_safetensors(
        path, fmt::format("its header would have {} bytes; at most {} are allowed and {} are there", length,
                          largest_header, rest));
  }
  std::string text(static_cast<size_t>(length), '\0');
  file->read_at(length_bytes, std::as_writable_bytes(std::span(text)));
  const auto header_length = static_cast<int64_t>(length);
  auto header = parse_safetensors_header(text, rest - header_length, path);
  header.data_offset = length_bytes + header_length;
  return {std::move(file), path, std::move(header)};
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::span<std::byte> out) const {
  ATHANOR_ASSERT(static_cast<int64_t>(out.size()) == entry.bytes());
  read_part(entry, 0, out);
}

void SafetensorsFile::read_part(const SafetensorsEntry& entry, int64_t offset,
                                std::span<std::byte> out) const {
  ATHANOR_ASSERT(offset >= 0 && static_cast<int64_t>(out.size()) <= entry.bytes() - offset);
  file_->read_at(header_.data_offset + entry.begin + offset, out);
}

bool SafetensorsFile::has_checksums() const {
  return header_.metadata.contains(std::string(header_checksum_key));
}

uint32_t SafetensorsFile::checksum(const SafetensorsEntry& entry) const {
  Crc32c checksum;
  std::vector<std::byte> buffer(std::min(piece_bytes, static_cast<size_t>(entry.bytes())));
  for (int64_t offset = entry.begin; offset < entry.end;) {
    const auto piece =
        std::span(buffer).first(std::min(buffer.size(), static_cast<size_t>(entry.end - offset)));
    file_->read_at(header_.data_offset + offset, piece);
    checksum.update(piece);
    offset += static_cast<int64_t>(piece.size());
  }
  return checksum.value();
}

const std::string& SafetensorsFile::stored_checksum(const std::string& key) const {
  const auto found = header_.metadata.find(key);
  if (found == header_.metadata.end()) refuse_safetensors(path_, fmt::format("it has no checksum '{}'", key));
  return found->second;
}

void SafetensorsFile::require_checksum(const SafetensorsEntry& entry, uint32_t computed) const {
  const std::string& stored = stored_checksum(checksum_key(entry.name));
  if (checksum_text(computed) != stored) {
    refuse_safetensors(path_, fmt::format("the checksum of tensor '{}' is {} and should be {}", entry.name,
                                          checksum_text(computed), stored));
  }
}

void SafetensorsFile::verify_header() const {
  if (stored_checksum(std::string(header_checksum_key)) != checksum_text(header_checksum(header_))) {
    refuse_safetensors(path_, "the header's checksum is wrong");
  }
}

void SafetensorsFile::verify() const {
  verify_header();
  for (const auto& entry : header_.tensors) require_checksum(entry, checksum(entry));
}

int64_t write_safetensors(FileEnvironment& files, const std::string& path,
                          std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                          RenameMode rename) {
  std::vector<TensorProducer> producers;
  for (const TensorBytes& tensor : tensors) producers.push_back(producer_of(tensor));
  return stream_safetensors(files, path, producers, metadata, rename);
}

int64_t stream_safetensors(FileEnvironment& files, const std::string& path,
                           std::span<const TensorProducer> tensors, const SafetensorsMetadata& metadata,
                           RenameMode rename) {
  const std::vector<Placed> placed = lay_out(tensors);
  SafetensorsHeader header;
  for (const auto& tensor : placed) header.tensors.push_back(tensor.entry);
  header.metadata = metadata;
  // Checksums are known when the data is written; their texts have a fixed length, so the header's is known
  // now.
  header.metadata[std::string(header_checksum_key)] = empty_checksum;
  for (const auto& entry : header.tensors) header.metadata[checksum_key(entry.name)] = empty_checksum;
  const size_t header_length = format_safetensors_header(header).size();
  if (header_length > static_cast<size_t>(largest_header)) {
    throw_user_error(fmt::format("cannot write '{}': its header would have {} bytes, more than {}", path,
                                 header_length, largest_header),
                     "the texts stored beside the tensors are too long");
  }
  const int64_t data_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
  const int64_t file_bytes = length_bytes + static_cast<int64_t>(header_length) + data_bytes;
  write_file_atomically(
      files, path,
      [&](WritableFile& file) {
        file.append(std::vector<std::byte>(static_cast<size_t>(length_bytes) + header_length));
        for (const auto& tensor : placed) {
          Crc32c checksum;
          int64_t written = 0;
          tensor.producer->produce([&](std::span<const std::byte> bytes) {
            written += static_cast<int64_t>(bytes.size());
            ATHANOR_ASSERT(written <= tensor.entry.bytes(), "'{}'", tensor.entry.name);
            // In pieces, so that the checksum finds in the cache what the write has just read.
            for (auto rest = bytes; !rest.empty();) {
              const auto piece = rest.first(std::min(rest.size(), piece_bytes));
              checksum.update(piece);
              file.append(piece);
              rest = rest.subspan(piece.size());
            }
          });
          ATHANOR_ASSERT(written == tensor.entry.bytes(), "'{}': {} bytes of {}", tensor.entry.name, written,
                         tensor.entry.bytes());
          header.metadata[checksum_key(tensor.entry.name)] = checksum_text(checksum.value());
        }
        header.metadata[std::string(header_checksum_key)] = checksum_text(header_checksum(header));
        const std::string text = format_safetensors_header(header);
        ATHANOR_ASSERT(text.size() == header_length);
        const auto length = static_cast<uint64_t>(header_length);
        file.write_at(length_bytes, std::as_bytes(std::span(text)));
        file.write_at(0, std::as_bytes(std::span(&length, 1)));
      },
      {.expected_bytes = file_bytes, .rename = rename});
  return file_bytes;
}

}  // namespace athanor
