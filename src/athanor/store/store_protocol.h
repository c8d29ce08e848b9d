// What clients and the store's server say to each other, byte by byte: docs/formats/store.md.
//
// Called by store_server.cpp and store_connection.cpp. Thread safety: pure functions. Readers trust nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/store/store.h"

namespace athanor {

enum class StoreOperation : uint32_t { set = 1, get, wait, add, compare_set, remove, gather };
enum class StoreStatus : uint32_t {
  value = 1,  // pieces: the value, or one piece for each wanted range
  nothing,    // there is no such key
  timed_out,  // pieces of a gathering: who is missing
  refused,    // one piece: why
};

struct StoreRequest {
  StoreOperation operation = StoreOperation::get;
  uint64_t number = 0;  // the client's, repeated in the reply
  int64_t amount = 0;   // add: the amount; wait, gather: how long to wait, in milliseconds
  std::string key, value;
};

struct StoreRequestHeader {
  static constexpr size_t bytes = 40;
  static constexpr uint32_t most_key = 1024, most_value = 16 << 20;
  StoreOperation operation = StoreOperation::get;
  uint64_t number = 0;
  int64_t amount = 0;
  uint32_t key_bytes = 0, value_bytes = 0, checksum = 0;  // of key and value
};

// A piece of a reply is encoded once, however many get it.
using StorePiece = std::shared_ptr<const std::string>;

struct StoreReplyHeader {
  static constexpr size_t bytes = 24;
  static constexpr uint32_t most_pieces = 64, most_piece = 256 << 20;
  StoreStatus status = StoreStatus::value;
  uint64_t number = 0;
  uint32_t pieces = 0;
};
inline constexpr size_t piece_header_bytes = 8;

// Whole messages. The other way: header by header, none if it is none.
std::string encode_request(const StoreRequest& request);
std::optional<StoreRequestHeader> decode_request_header(std::string_view bytes);
// `payload`: key and value; none if the checksum is not theirs.
std::optional<StoreRequest> decode_request(const StoreRequestHeader& header, std::string payload);

std::string encode_reply_header(const StoreReplyHeader& header);
std::optional<StoreReplyHeader> decode_reply_header(std::string_view bytes);
StorePiece encode_piece(std::string_view body);
struct StorePieceHeader {
  uint32_t bytes = 0, checksum = 0;
};
std::optional<StorePieceHeader> decode_piece_header(std::string_view bytes);

// The value of a gather request and of its answers. Decoding gives none for what is not one: no members,
// ranges or values outside of them, or more than `most_members`.
inline constexpr uint32_t most_members = 1 << 20, most_ranges = StoreReplyHeader::most_pieces;
std::string encode_gathering(const Gathering& gathering);
std::optional<Gathering> decode_gathering(std::string key, std::string_view value);
// A list of values, each with its length.
std::string encode_values(std::span<const StorePiece> values);
std::optional<ValueList> decode_values(std::string body);
// How many are missing, then the first of them.
std::string encode_missing(uint32_t count, std::span<const uint32_t> first);
bool decode_missing(std::string_view body, Gathered& gathered);

// Throws a user error for keys and values that are too long.
void check_request(const StoreRequest& request);

}  // namespace athanor
