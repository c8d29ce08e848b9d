#include "athanor/data/megatron_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they are");

constexpr std::array<char, 9> magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr size_t version_offset = 9, type_offset = 17, sequences_offset = 18, documents_offset = 26;
constexpr size_t header_bytes = 34;
constexpr int64_t first_i32_vocabulary = 65'500;
constexpr uint64_t format_version = 1;
constexpr uint8_t code_u16 = 8, code_i32 = 4;

// The arrays of the index are never aligned.
template <class T>
T get(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void put(WritableFile& file, T value) {
  file.append(std::as_bytes(std::span(&value, 1)));
}

std::optional<IdType> type_of_code(uint8_t code) {
  switch (code) {
    case 1:
      return IdType::u8;
    case 2:
      return IdType::i8;
    case 3:
      return IdType::i16;
    case code_i32:
      return IdType::i32;
    case 5:
      return IdType::i64;
    case code_u16:
      return IdType::u16;
    default:
      return std::nullopt;
  }
}

bool is_file(FileEnvironment& files, const std::string& path) {
  const auto status = files.status(path);
  return status && !status->is_directory;
}

}  // namespace

std::optional<std::string> megatron_prefix(FileEnvironment& files, const std::string& path) {
  std::string stem = path.size() > 4 ? path.substr(0, path.size() - 4) : "";
  if (path.ends_with(".idx")) return stem;
  if (path.ends_with(".bin") && is_file(files, stem + ".idx")) return stem;
  if (!files.exists(path) && is_file(files, path + ".idx")) return path;
  return std::nullopt;
}

std::shared_ptr<const MegatronDataset> MegatronDataset::open(FileEnvironment& files,
                                                             const std::string& prefix,
                                                             int64_t vocabulary_limit) {
  const auto index = files.open(prefix + ".idx"), tokens = files.open(prefix + ".bin");
  return std::shared_ptr<const MegatronDataset>(
      new MegatronDataset(prefix, *index, *tokens, vocabulary_limit));
}

void MegatronDataset::damaged(const std::string& reason) const {
  throw_user_error(fmt::format("indexed dataset '{}.idx': {}", prefix_, reason),
                   "the index is damaged, of another kind, or does not belong to its .bin file");
}

MegatronDataset::MegatronDataset(std::string prefix, const ReadableFile& index, const ReadableFile& tokens,
                                 int64_t vocabulary_limit)
    : prefix_(std::move(prefix)), index_(index.map()), tokens_(tokens.map()) {
  read_header();
  vocabulary_size_ = std::min(vocabulary_limit, ids_of(type_));
  check_sequences();
  check_documents();
  if (has_modes_) check_modes();
  const std::array<uint32_t, 2> parts = {crc32c(index_->bytes()), sampled_checksum(tokens)};
  identity_ = crc32c(std::as_bytes(std::span(parts)));
}

void MegatronDataset::read_header() {
  const auto bytes = index_->bytes();
  if (bytes.size() < header_bytes) {
    damaged(fmt::format("it has {} bytes, fewer than the {} of a header", bytes.size(), header_bytes));
  }
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) damaged("it does not begin as one");
  if (const auto version = get<uint64_t>(bytes, version_offset); version != format_version) {
    damaged(fmt::format("it has version {}, this program reads version {}", version, format_version));
  }
  const auto code = get<uint8_t>(bytes, type_offset);
  const auto type = type_of_code(code);
  if (!type) {
    damaged(fmt::format("its tokens have the type code {}{}", code,
                        code == 6   ? " (float64), which holds no token ids"
                        : code == 7 ? " (float32), which holds no token ids"
                                    : ", which the format does not have"));
  }
  type_ = *type;
  const auto sequences = get<uint64_t>(bytes, sequences_offset);
  const auto documents = get<uint64_t>(bytes, documents_offset);
  const size_t body = bytes.size() - header_bytes;
  if (sequences > body / 12 || documents > body / 8) {
    damaged(fmt::format("{} sequences and {} document marks do not fit in its {} bytes", sequences, documents,
                        bytes.size()));
  }
  const size_t plain = sequences * 12 + documents * 8;
  has_modes_ = sequences > 0 && body == plain + sequences;
  if (body != plain && !has_modes_) {
    damaged(fmt::format("it has {} bytes where {} sequences and {} document marks need {} (or {} with modes)",
                        bytes.size(), sequences, documents, header_bytes + plain,
                        header_bytes + plain + sequences));
  }
  if (documents == 0) damaged("it has no document marks, not even the last");
  sequence_count_ = static_cast<int64_t>(sequences);
  document_count_ = static_cast<int64_t>(documents) - 1;
}

int64_t MegatronDataset::length(int64_t sequence) const {
  return get<int32_t>(index_->bytes(), header_bytes + static_cast<size_t>(sequence) * 4);
}

int64_t MegatronDataset::offset(int64_t sequence) const {
  return get<int64_t>(index_->bytes(), header_bytes + static_cast<size_t>(sequence_count_) * 4 +
                                           static_cast<size_t>(sequence) * 8);
}

int64_t MegatronDataset::document_sequence(int64_t document) const {
  return get<int64_t>(index_->bytes(), header_bytes + static_cast<size_t>(sequence_count_) * 12 +
                                           static_cast<size_t>(document) * 8);
}

int64_t MegatronDataset::sequence_start(int64_t sequence) const {
  if (!starts_.empty()) return starts_[static_cast<size_t>(sequence)];
  return sequence == sequence_count_ ? token_count_
                                     : offset(sequence) / static_cast<int64_t>(width_of(type_));
}

void MegatronDataset::check_sequences() {
  const auto width = static_cast<int64_t>(width_of(type_));
  const auto size = static_cast<int64_t>(tokens_->bytes().size());
  bool in_order = true;
  for (int64_t i = 0; i < sequence_count_; ++i) {
    const int64_t tokens = length(i), at = offset(i);
    if (tokens < 0 || at < 0 || at > size || tokens > (size - at) / width) {
      damaged(fmt::format("sequence {} has {} tokens at byte {} of a .bin file of {} bytes", i, tokens, at,
                          size));
    }
    if (tokens > std::numeric_limits<int64_t>::max() / width - token_count_) damaged("too many tokens");
    in_order = in_order && at == token_count_ * width;
    token_count_ += tokens;
  }
  if (in_order) return;
  // Sequences may share tokens, but a small index must not stand for any amount of text.
  constexpr int64_t most_times = 16;
  if (token_count_ / most_times > size / width) {
    damaged(fmt::format("its sequences have {} tokens, more than {} times the {} that the .bin file holds",
                        token_count_, most_times, size / width));
  }
  starts_.reserve(static_cast<size_t>(sequence_count_) + 1);
  starts_.push_back(0);
  for (int64_t i = 0; i < sequence_count_; ++i) starts_.push_back(starts_.back() + length(i));
}

void MegatronDataset::check_documents() const {
  int64_t before = 0;
  for (int64_t i = 0; i <= document_count_; ++i) {
    const int64_t sequence = document_sequence(i);
    const bool right = i == 0 ? sequence == 0 : sequence >= before && sequence <= sequence_count_;
    if (!right) damaged(fmt::format("document mark {} is sequence {} of {}", i, sequence, sequence_count_));
    before = sequence;
  }
  if (before != sequence_count_) {
    damaged(fmt::format("the last document mark is sequence {} of {}", before, sequence_count_));
  }
}

// A mode other than 0 marks a sequence that is no text, such as the pixels of an image.
void MegatronDataset::check_modes() const {
  const size_t begin =
      header_bytes + static_cast<size_t>(sequence_count_) * 12 + static_cast<size_t>(document_count_ + 1) * 8;
  for (int64_t i = 0; i < sequence_count_; ++i) {
    const int mode = get<int8_t>(index_->bytes(), begin + static_cast<size_t>(i));
    if (mode == 0) continue;
    throw_user_error(
        fmt::format("indexed dataset '{}.idx': sequence {} has the mode {}: it is no text", prefix_, i, mode),
        "this is a multimodal dataset; only datasets of text can be read");
  }
}

void MegatronDataset::read(int64_t first, std::span<int32_t> out) const {
  ATHANOR_ASSERT(first >= 0 && static_cast<int64_t>(out.size()) <= token_count_ - first, "tokens {}+{} of {}",
                 first, out.size(), token_count_);
  if (out.empty()) return;
  const auto width = static_cast<int64_t>(width_of(type_));
  // The last sequence that starts at or before the token; empty ones share their start with the next.
  int64_t low = 0, high = sequence_count_;
  while (!starts_.empty() && high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (sequence_start(middle) <= first ? low : high) = middle;
  }
  while (!out.empty()) {
    // Sequences that lie in order are read as one.
    const int64_t place =
        starts_.empty() ? first * width : offset(low) + (first - sequence_start(low)) * width;
    const int64_t left = starts_.empty() ? token_count_ - first : sequence_start(low + 1) - first;
    const auto count = std::min(out.size(), static_cast<size_t>(left));
    int64_t bad = 0;
    const size_t right = unpack_ids(tokens_->bytes().subspan(static_cast<size_t>(place)), type_,
                                    vocabulary_size_, out.first(count), bad);
    if (right < count) {
      throw_user_error(
          fmt::format("indexed dataset '{}.bin': token {} has id {}, but the vocabulary has {} ids", prefix_,
                      first + static_cast<int64_t>(right), bad, vocabulary_size_),
          "it was made with another tokenizer, or the file is damaged");
    }
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
    ++low;
  }
}

Document MegatronDataset::document(int64_t number) const {
  ATHANOR_ASSERT(number >= 0 && number < document_count_, "document {} of {}", number, document_count_);
  return {.number = number,
          .begin = sequence_start(document_sequence(number)),
          .end = sequence_start(document_sequence(number + 1))};
}

Document MegatronDataset::document_at(int64_t position) const {
  ATHANOR_ASSERT(position >= 0 && position < token_count_, "token {} of {}", position, token_count_);
  int64_t low = 0, high = document_count_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (sequence_start(document_sequence(middle)) <= position ? low : high) = middle;
  }
  return document(low);
}

MegatronWriter::MegatronWriter(WritableFile& file, int64_t vocabulary_size)
    : file_(file), vocabulary_size_(vocabulary_size), width_(vocabulary_size < first_i32_vocabulary ? 2 : 4) {
  ATHANOR_ASSERT(vocabulary_size >= 1 && vocabulary_size <= std::numeric_limits<int32_t>::max());
}

void MegatronWriter::append(std::span<const int32_t> ids) {
  constexpr size_t buffered = 1 << 16;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size_) {
      throw_user_error(fmt::format("token {} has id {}, but the vocabulary has {} ids", token_count_, id,
                                   vocabulary_size_),
                       "the tokenizer and the vocabulary size do not belong together");
    }
    const size_t used = buffer_.size();
    buffer_.resize(used + width_);
    std::memcpy(buffer_.data() + used, &id, width_);  // little-endian: the low bytes come first
    ++token_count_;
    if (buffer_.size() >= buffered) flush();
  }
}

void MegatronWriter::flush() {
  file_.append(buffer_);
  buffer_.clear();
}

void MegatronWriter::end_sequence() {
  const int64_t tokens = token_count_ - sequence_start_;
  if (tokens == 0) return;
  if (tokens > std::numeric_limits<int32_t>::max()) {
    throw_user_error(fmt::format("a sequence of {} tokens is too long for an indexed dataset", tokens),
                     "its lengths have 31 bits: cut the text into documents, or use the athanor format");
  }
  lengths_.push_back(static_cast<int32_t>(tokens));
  sequence_start_ = token_count_;
}

void MegatronWriter::end_document() {
  end_sequence();
  const auto sequences = static_cast<int64_t>(lengths_.size());
  if (sequences > documents_.back()) documents_.push_back(sequences);
}

void MegatronWriter::write_index(WritableFile& file) const {
  file.append(std::as_bytes(std::span(magic)));
  put(file, format_version);
  put(file, width_ == 2 ? code_u16 : code_i32);
  put(file, static_cast<uint64_t>(lengths_.size()));
  put(file, static_cast<uint64_t>(documents_.size()));
  file.append(std::as_bytes(std::span(lengths_)));
  std::vector<int64_t> offsets;  // a piece at a time
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    offsets.push_back(offset);
    offset += length * static_cast<int64_t>(width_);
    if (offsets.size() < 8192) continue;
    file.append(std::as_bytes(std::span(offsets)));
    offsets.clear();
  }
  file.append(std::as_bytes(std::span(offsets)));
  file.append(std::as_bytes(std::span(documents_)));
}

void write_megatron_dataset(FileEnvironment& files, const std::string& prefix, int64_t vocabulary_size,
                            const std::function<void(MegatronWriter&)>& fill) {
  const std::string index = prefix + ".idx";
  std::optional<MegatronWriter> writer;
  write_file_atomically(files, prefix + ".bin", [&](WritableFile& file) {
    writer.emplace(MegatronWriter(file, vocabulary_size));
    fill(*writer);
    writer->end_document();
    writer->flush();
    if (!files.exists(index)) return;
    files.remove(index);
    files.sync_directory(parent_directory(index));
  });
  write_file_atomically(files, index, [&](WritableFile& file) { writer->write_index(file); });
}

}  // namespace athanor
