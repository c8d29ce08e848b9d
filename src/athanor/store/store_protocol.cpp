#include "athanor/store/store_protocol.h"

#include <algorithm>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/base/little_endian.h"

namespace athanor {
namespace {

constexpr uint32_t request_magic = 0x31515441, reply_magic = 0x31525441;  // "ATQ1", "ATR1"

uint32_t checksum_of(std::string_view text) {
  return crc32c(bytes_of(text));
}

// Takes `count` bytes off the front; false if there are not so many.
bool take(std::string_view& from, size_t count, std::string_view& to) {
  if (from.size() < count) return false;
  to = from.substr(0, count);
  from.remove_prefix(count);
  return true;
}

bool take(std::string_view& from, uint32_t& to) {
  std::string_view bytes;
  if (!take(from, sizeof to, bytes)) return false;
  to = little_endian_at<uint32_t>(bytes_of(bytes), 0);
  return true;
}

}  // namespace

std::string encode_request(const StoreRequest& request) {
  std::string bytes;
  const std::string payload = request.key + request.value;
  bytes.reserve(StoreRequestHeader::bytes + payload.size());
  append_little_endian(bytes, request_magic);
  append_little_endian(bytes, static_cast<uint32_t>(request.operation));
  append_little_endian(bytes, request.number);
  append_little_endian(bytes, request.amount);
  append_little_endian(bytes, static_cast<uint32_t>(request.key.size()));
  append_little_endian(bytes, static_cast<uint32_t>(request.value.size()));
  append_little_endian(bytes, checksum_of(payload));
  append_little_endian(bytes, checksum_of(bytes));
  return bytes + payload;
}

std::optional<StoreRequestHeader> decode_request_header(std::string_view bytes) {
  if (bytes.size() != StoreRequestHeader::bytes ||
      little_endian_at<uint32_t>(bytes_of(bytes), 0) != request_magic ||
      little_endian_at<uint32_t>(bytes_of(bytes), 36) != checksum_of(bytes.substr(0, 36)))
    return std::nullopt;
  const auto operation = little_endian_at<uint32_t>(bytes_of(bytes), 4);
  if (operation < static_cast<uint32_t>(StoreOperation::set) ||
      operation > static_cast<uint32_t>(StoreOperation::gather))
    return std::nullopt;
  StoreRequestHeader header;
  header.operation = static_cast<StoreOperation>(operation);
  header.number = little_endian_at<uint64_t>(bytes_of(bytes), 8);
  header.amount = little_endian_at<int64_t>(bytes_of(bytes), 16);
  header.key_bytes = little_endian_at<uint32_t>(bytes_of(bytes), 24);
  header.value_bytes = little_endian_at<uint32_t>(bytes_of(bytes), 28);
  header.checksum = little_endian_at<uint32_t>(bytes_of(bytes), 32);
  if (header.key_bytes > StoreRequestHeader::most_key || header.value_bytes > StoreRequestHeader::most_value)
    return std::nullopt;
  return header;
}

std::optional<StoreRequest> decode_request(const StoreRequestHeader& header, std::string payload) {
  if (payload.size() != size_t{header.key_bytes} + header.value_bytes ||
      checksum_of(payload) != header.checksum)
    return std::nullopt;
  StoreRequest request{
      header.operation, header.number, header.amount, payload.substr(0, header.key_bytes), {}};
  payload.erase(0, header.key_bytes);
  request.value = std::move(payload);
  return request;
}

std::string encode_reply_header(const StoreReplyHeader& header) {
  std::string bytes;
  append_little_endian(bytes, reply_magic);
  append_little_endian(bytes, static_cast<uint32_t>(header.status));
  append_little_endian(bytes, header.number);
  append_little_endian(bytes, header.pieces);
  append_little_endian(bytes, checksum_of(bytes));
  return bytes;
}

std::optional<StoreReplyHeader> decode_reply_header(std::string_view bytes) {
  if (bytes.size() != StoreReplyHeader::bytes ||
      little_endian_at<uint32_t>(bytes_of(bytes), 0) != reply_magic ||
      little_endian_at<uint32_t>(bytes_of(bytes), 20) != checksum_of(bytes.substr(0, 20)))
    return std::nullopt;
  const auto status = little_endian_at<uint32_t>(bytes_of(bytes), 4);
  if (status < static_cast<uint32_t>(StoreStatus::value) ||
      status > static_cast<uint32_t>(StoreStatus::refused))
    return std::nullopt;
  const StoreReplyHeader header{static_cast<StoreStatus>(status),
                                little_endian_at<uint64_t>(bytes_of(bytes), 8),
                                little_endian_at<uint32_t>(bytes_of(bytes), 16)};
  if (header.pieces > StoreReplyHeader::most_pieces) return std::nullopt;
  return header;
}

StorePiece encode_piece(std::string_view body) {
  std::string bytes;
  bytes.reserve(piece_header_bytes + body.size());
  append_little_endian(bytes, static_cast<uint32_t>(body.size()));
  append_little_endian(bytes, checksum_of(body));
  bytes += body;
  return std::make_shared<const std::string>(std::move(bytes));
}

std::optional<StorePieceHeader> decode_piece_header(std::string_view bytes) {
  if (bytes.size() != piece_header_bytes) return std::nullopt;
  const StorePieceHeader header{little_endian_at<uint32_t>(bytes_of(bytes), 0),
                                little_endian_at<uint32_t>(bytes_of(bytes), 4)};
  if (header.bytes > StoreReplyHeader::most_piece) return std::nullopt;
  return header;
}

std::string encode_gathering(const Gathering& gathering) {
  std::string bytes;
  append_little_endian(bytes, gathering.members);
  append_little_endian(bytes, gathering.first);
  append_little_endian(bytes, static_cast<uint32_t>(gathering.values.size()));
  append_little_endian(bytes, static_cast<uint32_t>(gathering.wanted.size()));
  for (const MemberRange& range : gathering.wanted) {
    append_little_endian(bytes, range.begin);
    append_little_endian(bytes, range.stride);
    append_little_endian(bytes, range.count);
  }
  for (const std::string& value : gathering.values) {
    append_little_endian(bytes, static_cast<uint32_t>(value.size()));
    bytes += value;
  }
  return bytes;
}

std::optional<Gathering> decode_gathering(std::string key, std::string_view value) {
  Gathering gathering;
  gathering.key = std::move(key);
  uint32_t values = 0, ranges = 0;
  if (!take(value, gathering.members) || !take(value, gathering.first) || !take(value, values) ||
      !take(value, ranges))
    return std::nullopt;
  const uint32_t members = gathering.members;
  if (members == 0 || members > most_members || ranges > most_ranges || values > members ||
      gathering.first > members - values)
    return std::nullopt;
  for (uint32_t i = 0; i < ranges; ++i) {
    MemberRange range;
    if (!take(value, range.begin) || !take(value, range.stride) || !take(value, range.count))
      return std::nullopt;
    if (range.stride == 0 || range.count == 0 || range.count > members ||
        range.begin + uint64_t{range.stride} * (range.count - 1) >= members)
      return std::nullopt;
    gathering.wanted.push_back(range);
  }
  for (uint32_t i = 0; i < values; ++i) {
    uint32_t length = 0;
    std::string_view each;
    if (!take(value, length) || !take(value, length, each)) return std::nullopt;
    gathering.values.emplace_back(each);
  }
  if (!value.empty()) return std::nullopt;
  return gathering;
}

std::string encode_values(std::span<const StorePiece> values) {
  std::string bytes;
  size_t length = 4;
  for (const StorePiece& value : values) length += 4 + value->size();
  bytes.reserve(length);
  append_little_endian(bytes, static_cast<uint32_t>(values.size()));
  for (const StorePiece& value : values) {
    append_little_endian(bytes, static_cast<uint32_t>(value->size()));
    bytes += *value;
  }
  return bytes;
}

std::optional<ValueList> decode_values(std::string body) {
  std::string_view rest = body;
  uint32_t count = 0;
  if (body.size() > StoreReplyHeader::most_piece || !take(rest, count) || count > rest.size() / 4)
    return std::nullopt;
  std::vector<uint32_t> begins;
  begins.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    std::string_view value;
    if (!take(rest, length)) return std::nullopt;
    begins.push_back(static_cast<uint32_t>(body.size() - rest.size()));
    if (!take(rest, length, value)) return std::nullopt;
  }
  if (!rest.empty()) return std::nullopt;
  return ValueList(std::move(body), std::move(begins));
}

std::string encode_missing(uint32_t count, std::span<const uint32_t> first) {
  std::string bytes;
  append_little_endian(bytes, count);
  for (const uint32_t member : first) append_little_endian(bytes, member);
  return bytes;
}

bool decode_missing(std::string_view body, Gathered& gathered) {
  if (!take(body, gathered.missing_count) || body.size() % 4 != 0) return false;
  while (!body.empty()) take(body, gathered.missing.emplace_back());
  return true;
}

void check_request(const StoreRequest& request) {
  if (request.key.empty() || request.key.size() > StoreRequestHeader::most_key)
    throw_user_error(fmt::format("a key of the store has {} bytes", request.key.size()),
                     fmt::format("1 to {}", StoreRequestHeader::most_key));
  if (request.value.size() > StoreRequestHeader::most_value)
    throw_user_error(fmt::format("a value of the store has {} bytes", request.value.size()),
                     fmt::format("{} at most", StoreRequestHeader::most_value));
}

}  // namespace athanor
