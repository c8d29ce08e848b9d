#include "athanor/data/llmc_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they are");

constexpr size_t header_bytes = 1024;

struct Kind {
  int32_t magic, version;  // version 0: not read
  IdType type;
  std::string_view name;
};

constexpr std::array<Kind, 9> kinds = {{
    {20240520, 1, IdType::u16, "tokens"},
    {20240801, 7, IdType::u32, "tokens"},
    {20240522, 0, IdType::u16, "an evaluation set"},
    {20240326, 0, IdType::u16, "a model"},
    {20240327, 0, IdType::u16, "a debug state"},
    {20240328, 0, IdType::u16, "a tokenizer"},
    {20240527, 0, IdType::u16, "an optimizer state"},
    {20240803, 0, IdType::u16, "a model"},
    {20240802, 0, IdType::u16, "a debug state"},
}};

int32_t word(std::span<const std::byte> bytes, size_t index) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

const Kind* kind_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(int32_t)) return nullptr;
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const Kind& kind) { return kind.magic == word(bytes, 0); });
  return found == kinds.end() ? nullptr : &*found;
}

}  // namespace

bool LlmcTokens::begins_as_one(std::span<const std::byte> bytes) {
  return kind_of(bytes) != nullptr;
}

std::shared_ptr<const LlmcTokens> LlmcTokens::open(FileEnvironment& files, const std::string& path,
                                                   int64_t vocabulary_limit) {
  return std::shared_ptr<const LlmcTokens>(new LlmcTokens(path, *files.open(path), vocabulary_limit));
}

void LlmcTokens::damaged(const std::string& reason) const {
  throw_user_error(fmt::format("llm.c token file '{}': {}", path_, reason),
                   "the file is damaged or of another kind");
}

LlmcTokens::LlmcTokens(std::string path, const ReadableFile& file, int64_t vocabulary_limit)
    : path_(std::move(path)), map_(file.map()) {
  const auto bytes = map_->bytes();
  if (bytes.size() < header_bytes) {
    damaged(fmt::format("it has {} bytes, fewer than the {} of a header", bytes.size(), header_bytes));
  }
  const Kind* kind = kind_of(bytes);
  if (kind == nullptr) damaged(fmt::format("it begins with {}, which is no such file", word(bytes, 0)));
  if (kind->version == 0) damaged(fmt::format("it holds {}, not tokens", kind->name));
  if (word(bytes, 1) != kind->version) {
    damaged(fmt::format("it has version {}, this program reads version {}", word(bytes, 1), kind->version));
  }
  type_ = kind->type;
  token_count_ = word(bytes, 2);
  const size_t body = bytes.size() - header_bytes;
  if (token_count_ < 0 || static_cast<size_t>(token_count_) * width_of(type_) != body) {
    damaged(fmt::format("{} tokens of {} bytes where the file has {} bytes for them", token_count_,
                        width_of(type_), body));
  }
  vocabulary_size_ = std::min(vocabulary_limit, ids_of(type_));
  identity_ = sampled_checksum(file);
}

void LlmcTokens::read(int64_t first, std::span<int32_t> out) const {
  ATHANOR_ASSERT(first >= 0 && static_cast<int64_t>(out.size()) <= token_count_ - first, "tokens {}+{} of {}",
                 first, out.size(), token_count_);
  const size_t offset = header_bytes + static_cast<size_t>(first) * width_of(type_);
  int64_t bad = 0;
  const size_t right = unpack_ids(map_->bytes().subspan(offset), type_, vocabulary_size_, out, bad);
  if (right < out.size()) {
    throw_user_error(fmt::format("llm.c token file '{}': token {} has id {}, but the vocabulary has {} ids",
                                 path_, first + static_cast<int64_t>(right), bad, vocabulary_size_),
                     "it was made with another tokenizer, or the file is damaged");
  }
}

Document LlmcTokens::document_at(int64_t position) const {
  ATHANOR_ASSERT(position >= 0 && position < token_count_, "token {} of {}", position, token_count_);
  return document(0);
}

Document LlmcTokens::document(int64_t number) const {
  ATHANOR_ASSERT(number == 0 && token_count_ > 0);
  return {.number = 0, .begin = 0, .end = token_count_};
}

}  // namespace athanor
