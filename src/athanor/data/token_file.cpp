#include "athanor/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/data/packed_ids.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they are");

constexpr size_t header_bytes = 128, header_checked_bytes = 124;
constexpr size_t stretches_offset = 52, tokenizer_offset = 60, reserved_offset = 64;
constexpr std::array<char, 8> magic = {'A', 'T', 'H', 'T', 'O', 'K', '\r', '\n'};
// Files that need nothing of version 2 are written as version 1: same contents, same bytes, same identity.
constexpr uint32_t plain_version = 1, latest_version = 2;
constexpr uint64_t largest_u16_vocabulary = 65'536;
constexpr uint64_t largest_vocabulary = std::numeric_limits<int32_t>::max();
constexpr uint64_t smallest_block = 4096, largest_block = uint64_t{1} << 30;

using Header = std::array<std::byte, header_bytes>;

template <class T>
void put(Header& header, size_t offset, T value) {
  std::memcpy(header.data() + offset, &value, sizeof value);
}

template <class T>
T get(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

constexpr size_t round_up_to_8(size_t value) {
  return (value + 7) / 8 * 8;
}

bool is_block_size(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= smallest_block && bytes <= largest_block;
}

size_t width_for(uint64_t vocabulary_size) {
  return vocabulary_size <= largest_u16_vocabulary ? 2 : 4;
}

}  // namespace

TokenFileWriter::TokenFileWriter(WritableFile& file, TokenFileOptions options)
    : file_(file), options_(options) {
  ATHANOR_ASSERT(options.vocabulary_size >= 1 &&
                 static_cast<uint64_t>(options.vocabulary_size) <= largest_vocabulary);
  ATHANOR_ASSERT(is_block_size(static_cast<uint64_t>(options.block_bytes)));
  width_ = width_for(static_cast<uint64_t>(options.vocabulary_size));
  block_.reserve(static_cast<size_t>(options.block_bytes));
  // Zeros for now: a file that is cut off before finish() has no valid header.
  file_.append(Header{});
}

void TokenFileWriter::append(std::span<const int32_t> ids, bool learned) {
  if (!learned && !ids.empty()) {
    const auto begin = static_cast<uint64_t>(token_count_), end = begin + ids.size();
    if (!unlearned_.empty() && unlearned_.back() == begin) {
      unlearned_.back() = end;
    } else {
      unlearned_.insert(unlearned_.end(), {begin, end});
    }
    unlearned_count_ += static_cast<int64_t>(ids.size());
  }
  const auto block_bytes = static_cast<size_t>(options_.block_bytes);
  while (!ids.empty()) {
    const size_t used = block_.size(), count = std::min(ids.size(), (block_bytes - used) / width_);
    block_.resize(used + count * width_);
    std::byte* out = block_.data() + used;
    for (const int32_t id : ids.first(count)) {
      if (id < 0 || id >= options_.vocabulary_size) {
        throw_user_error(fmt::format("token {} has id {}, but the vocabulary has {} ids", token_count_, id,
                                     options_.vocabulary_size),
                         "the tokenizer and the vocabulary size do not belong together");
      }
      std::memcpy(out, &id, width_);  // little-endian: the low bytes come first
      out += width_;
      ++token_count_;
    }
    ids = ids.subspan(count);
    if (block_.size() == block_bytes) write_block();
  }
}

void TokenFileWriter::end_document() {
  if (token_count_ == document_start_) return;
  document_starts_.push_back(static_cast<uint64_t>(document_start_));
  document_start_ = token_count_;
}

void TokenFileWriter::write_block() {
  if (block_.empty()) return;
  checksums_.push_back(crc32c(block_));
  file_.append(block_);
  block_.clear();
}

void TokenFileWriter::finish() {
  end_document();
  write_block();
  const auto token_bytes = static_cast<size_t>(token_count_) * width_;
  const std::array<std::byte, 8> zeros{};
  const auto padding = std::span(zeros).first(round_up_to_8(token_bytes) - token_bytes);
  Crc32c index;
  for (const auto part : {std::span<const std::byte>(padding), std::as_bytes(std::span(document_starts_)),
                          std::as_bytes(std::span(unlearned_)), std::as_bytes(std::span(checksums_))}) {
    index.update(part);
    file_.append(part);
  }
  Header header{};
  std::memcpy(header.data(), magic.data(), magic.size());
  const bool plain = unlearned_.empty() && options_.tokenizer_identity == 0;
  put(header, 8, plain ? plain_version : latest_version);
  put(header, 12, static_cast<uint32_t>(width_));
  put(header, 16, static_cast<uint64_t>(token_count_));
  put(header, 24, static_cast<uint64_t>(document_starts_.size()));
  put(header, 32, static_cast<uint64_t>(options_.vocabulary_size));
  put(header, 40, static_cast<uint64_t>(options_.block_bytes));
  put(header, 48, index.value());
  put(header, stretches_offset, static_cast<uint64_t>(unlearned_.size() / 2));
  put(header, tokenizer_offset, options_.tokenizer_identity);
  put(header, header_checked_bytes, crc32c(std::span(header).first(header_checked_bytes)));
  file_.write_at(0, header);
}

void write_token_file(FileEnvironment& files, const std::string& path, const TokenFileOptions& options,
                      const std::function<void(TokenFileWriter&)>& fill, int64_t expected_tokens) {
  const auto width = static_cast<int64_t>(width_for(static_cast<uint64_t>(options.vocabulary_size)));
  write_file_atomically(
      files, path,
      [&](WritableFile& file) {
        TokenFileWriter writer(file, options);
        fill(writer);
        writer.finish();
      },
      {.expected_bytes =
           expected_tokens > 0 ? static_cast<int64_t>(header_bytes) + expected_tokens * width : 0});
}

bool TokenFile::begins_as_one(std::span<const std::byte> bytes) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::shared_ptr<const TokenFile> TokenFile::open(FileEnvironment& files, const std::string& path) {
  return std::shared_ptr<const TokenFile>(new TokenFile(files.open(path)->map(), path));
}

void TokenFile::damaged(const std::string& reason) const {
  throw_user_error(fmt::format("token file '{}': {}", path_, reason),
                   "the file is damaged or of another kind; prepare it again from the text");
}

TokenFile::TokenFile(std::shared_ptr<const MappedFile> map, std::string path)
    : map_(std::move(map)), path_(std::move(path)) {
  const auto bytes = map_->bytes();
  if (bytes.size() < header_bytes) {
    damaged(fmt::format("it has {} bytes, fewer than the {} of a header", bytes.size(), header_bytes));
  }
  if (!begins_as_one(bytes)) damaged("it does not begin as one");
  const auto version = get<uint32_t>(bytes, 8);
  if (version != plain_version && version != latest_version) {
    damaged(fmt::format("it has version {}, this program reads versions up to {}", version, latest_version));
  }
  identity_ = get<uint32_t>(bytes, header_checked_bytes);
  if (identity_ != crc32c(bytes.first(header_checked_bytes))) damaged("the header's checksum is wrong");

  // The checksum guards against accidents only, so every number is checked all the same.
  width_ = get<uint32_t>(bytes, 12);
  const auto tokens = get<uint64_t>(bytes, 16), documents = get<uint64_t>(bytes, 24);
  const auto vocabulary = get<uint64_t>(bytes, 32), block_bytes = get<uint64_t>(bytes, 40);
  if (width_ != 2 && width_ != 4) damaged(fmt::format("tokens of {} bytes", width_));
  if (vocabulary < 1 || vocabulary > largest_vocabulary ||
      (width_ == 2 && vocabulary > largest_u16_vocabulary)) {
    damaged(fmt::format("a vocabulary of {} ids in tokens of {} bytes", vocabulary, width_));
  }
  if (!is_block_size(block_bytes)) damaged(fmt::format("blocks of {} bytes", block_bytes));
  const size_t known = version == plain_version ? stretches_offset : reserved_offset;
  const auto reserved = bytes.subspan(known, header_checked_bytes - known);
  if (std::any_of(reserved.begin(), reserved.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
    damaged("the header holds fields this program does not know");
  }
  const auto stretches = get<uint64_t>(bytes, stretches_offset);  // zero in a file of version 1
  tokenizer_identity_ = get<uint32_t>(bytes, tokenizer_offset);
  const size_t body = bytes.size() - header_bytes;
  if (tokens > body / width_ || documents > body / 8 || stretches > body / 16) {
    damaged(fmt::format("{} tokens, {} documents and {} unlearned stretches do not fit in its {} bytes",
                        tokens, documents, stretches, bytes.size()));
  }
  const size_t token_bytes = tokens * width_;
  block_bytes_ = block_bytes;
  block_count_ = token_bytes / block_bytes_ + (token_bytes % block_bytes_ != 0 ? 1 : 0);
  starts_offset_ = header_bytes + round_up_to_8(token_bytes);
  unlearned_offset_ = starts_offset_ + documents * 8;
  checksums_offset_ = unlearned_offset_ + stretches * 16;
  const size_t expected = checksums_offset_ + block_count_ * 4;
  if (bytes.size() != expected) {
    damaged(fmt::format("it has {} bytes where {} tokens, {} documents and {} unlearned stretches need {}",
                        bytes.size(), tokens, documents, stretches, expected));
  }
  token_count_ = static_cast<int64_t>(tokens);
  document_count_ = static_cast<int64_t>(documents);
  unlearned_stretches_ = static_cast<int64_t>(stretches);
  vocabulary_size_ = static_cast<int64_t>(vocabulary);
  if (get<uint32_t>(bytes, 48) != crc32c(bytes.subspan(header_bytes + token_bytes))) {
    damaged("the index's checksum is wrong");
  }
  check_index();
  check_unlearned();
  checked_ = std::make_unique<std::atomic<uint8_t>[]>(block_count_);
}

void TokenFile::check_index() const {
  if ((document_count_ == 0) != (token_count_ == 0)) {
    damaged(fmt::format("{} documents with {} tokens", document_count_, token_count_));
  }
  for (int64_t i = 0; i < document_count_; ++i) {
    const auto start = get<uint64_t>(map_->bytes(), starts_offset_ + static_cast<size_t>(i) * 8);
    const bool right = i == 0 ? start == 0 : start > static_cast<uint64_t>(document_start(i - 1));
    if (!right || start >= static_cast<uint64_t>(token_count_)) {
      damaged(fmt::format("document {} starts at token {}", i, start));
    }
  }
}

int64_t TokenFile::unlearned_border(int64_t number) const {
  return static_cast<int64_t>(
      get<uint64_t>(map_->bytes(), unlearned_offset_ + static_cast<size_t>(number) * 8));
}

void TokenFile::check_unlearned() const {
  int64_t before = -1;  // stretches do not touch, and none is empty: their borders rise strictly
  for (int64_t i = 0; i < 2 * unlearned_stretches_; ++i) {
    const int64_t border = unlearned_border(i);
    if (border <= before || border > token_count_) {
      damaged(fmt::format("border {} of its unlearned stretches is token {}", i, border));
    }
    before = border;
  }
}

TokenRange TokenFile::unlearned_in(TokenRange range) const {
  // The first stretch that ends behind the beginning of the range.
  int64_t low = 0, high = unlearned_stretches_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (unlearned_border(2 * middle + 1) > range.begin)
      high = middle;
    else
      low = middle + 1;
  }
  if (low == unlearned_stretches_) return {range.end, range.end};
  const TokenRange found{std::max(range.begin, unlearned_border(2 * low)),
                         std::min(range.end, unlearned_border(2 * low + 1))};
  return found.size() > 0 ? found : TokenRange{range.end, range.end};
}

int64_t TokenFile::document_start(int64_t document) const {
  return static_cast<int64_t>(
      get<uint64_t>(map_->bytes(), starts_offset_ + static_cast<size_t>(document) * 8));
}

void TokenFile::check_block(size_t block) const {
  if (checked_[block].load(std::memory_order_relaxed) != 0) return;
  const size_t token_bytes = static_cast<size_t>(token_count_) * width_;
  const size_t begin = block * block_bytes_, size = std::min(block_bytes_, token_bytes - begin);
  if (crc32c(map_->bytes().subspan(header_bytes + begin, size)) !=
      get<uint32_t>(map_->bytes(), checksums_offset_ + block * 4)) {
    damaged(fmt::format("the checksum of block {} (bytes {} to {}) is wrong", block, header_bytes + begin,
                        header_bytes + begin + size));
  }
  checked_[block].store(1, std::memory_order_relaxed);
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const {
  ATHANOR_ASSERT(first >= 0 && static_cast<int64_t>(out.size()) <= token_count_ - first, "tokens {}+{} of {}",
                 first, out.size(), token_count_);
  if (out.empty()) return;
  const auto offset = static_cast<size_t>(first) * width_;
  const size_t size = out.size() * width_;
  for (size_t block = offset / block_bytes_; block <= (offset + size - 1) / block_bytes_; ++block) {
    check_block(block);
  }
  const auto bytes = map_->bytes().subspan(header_bytes + offset, size);
  int64_t bad = 0;
  const size_t right = unpack_ids(bytes, width_ == 2 ? IdType::u16 : IdType::i32, vocabulary_size_, out, bad);
  if (right < out.size()) {
    damaged(fmt::format("token {} has id {}, but the vocabulary has {} ids",
                        first + static_cast<int64_t>(right), bad, vocabulary_size_));
  }
}

Document TokenFile::document_at(int64_t position) const {
  ATHANOR_ASSERT(position >= 0 && position < token_count_, "token {} of {}", position, token_count_);
  // The last document that starts at or before the position.
  int64_t low = 0, high = document_count_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= position ? low : high) = middle;
  }
  return document(low);
}

Document TokenFile::document(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < document_count_, "document {} of {}", number, document_count_);
  return {.number = number,
          .begin = document_start(number),
          .end = number + 1 < document_count_ ? document_start(number + 1) : token_count_};
}

void TokenFile::verify() const {
  std::vector<int32_t> ids(8192);
  for (int64_t first = 0; first < token_count_; first += static_cast<int64_t>(ids.size())) {
    const auto count = std::min(static_cast<int64_t>(ids.size()), token_count_ - first);
    read(first, std::span(ids).first(static_cast<size_t>(count)));
  }
}

}  // namespace athanor
