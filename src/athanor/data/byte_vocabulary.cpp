#include "athanor/data/byte_vocabulary.h"

#include <algorithm>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/data/token_file.h"

namespace athanor::byte_vocabulary {

std::vector<int32_t> encode(std::string_view text) {
  std::vector<int32_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(), [](char c) { return static_cast<uint8_t>(c); });
  return ids;
}

std::string decode(std::span<const int32_t> ids) {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || id > end_of_text) {
      throw_user_error(fmt::format("id {} is not in the byte vocabulary, which ends at {}", id, end_of_text),
                       "the model was trained with another tokenizer");
    }
    if (id != end_of_text) text.push_back(static_cast<char>(id));
  }
  return text;
}

DocumentSplitter::DocumentSplitter(std::string separator, std::function<void(std::string_view)> text,
                                   std::function<void()> end)
    : separator_(std::move(separator)), text_(std::move(text)), end_(std::move(end)) {
  if (separator_.find_first_of("\r\n") != std::string::npos) {
    throw_user_error("the document separator holds a line break", "it is compared with one line at a time");
  }
}

void DocumentSplitter::flush_held() {
  if (!held_.empty()) text_(held_);
  held_.clear();
}

void DocumentSplitter::append(std::string_view piece) {
  if (separator_.empty()) {
    if (!piece.empty()) text_(piece);
    return;
  }
  size_t i = 0;
  while (i < piece.size()) {
    if (!candidate_) {  // the rest of a line that is none
      const size_t feed = piece.find('\n', i);
      const size_t next = feed == std::string_view::npos ? piece.size() : feed + 1;
      text_(piece.substr(i, next - i));
      candidate_ = feed != std::string_view::npos;
      i = next;
      continue;
    }
    const char character = piece[i];
    const bool complete = held_.size() >= separator_.size();
    if (character == '\n' && complete) {
      held_.clear();
      end_();
      ++i;
    } else if (complete ? character == '\r' && held_.size() == separator_.size()
                        : character == separator_[held_.size()]) {
      held_.push_back(character);
      ++i;
    } else {
      flush_held();
      candidate_ = false;  // the character itself goes out with the rest of its line
    }
  }
}

void DocumentSplitter::finish() {
  const bool separator_at_end = !separator_.empty() && candidate_ && held_.size() >= separator_.size();
  if (separator_at_end) held_.clear();
  flush_held();
  end_();
}

}  // namespace athanor::byte_vocabulary

namespace athanor {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

// Calls `use` with the file's contents, a piece at a time.
template <class Use>
void for_each_piece(const ReadableFile& file, Use&& use) {
  std::string buffer;
  for (int64_t offset = 0; offset < file.size(); offset += static_cast<int64_t>(buffer.size())) {
    buffer.resize(std::min(piece_bytes, static_cast<size_t>(file.size() - offset)));
    file.read_at(offset, std::as_writable_bytes(std::span(buffer)));
    use(std::string_view(buffer));
  }
}

uint32_t checksum_of(const ReadableFile& file) {
  Crc32c checksum;
  for_each_piece(file, [&](std::string_view piece) { checksum.update(piece); });
  return checksum.value();
}

// What is good enough to be used again: it opens, and all of its blocks are right.
bool is_usable(FileEnvironment& files, const std::string& path) {
  if (!files.exists(path)) return false;
  try {
    TokenFile::open(files, path)->verify();
    return true;
  } catch (const Error&) {
    return false;  // it is made again from the text, which is at hand
  }
}

}  // namespace

uint32_t encode_text_file(FileEnvironment& files, const std::string& text_path, const std::string& token_path,
                          const TextFileOptions& options) {
  const auto text = files.open(text_path);
  Crc32c checksum;
  const auto fill = [&](TokenFileWriter& writer) {
    bool any = false;
    std::vector<int32_t> ids;
    byte_vocabulary::DocumentSplitter splitter(
        options.document_separator,
        [&](std::string_view piece) {
          ids = byte_vocabulary::encode(piece);
          writer.append(ids);
          any = true;
        },
        [&] {
          if (any) writer.append(std::span(&byte_vocabulary::end_of_text, 1));
          writer.end_document();
          any = false;
        });
    for_each_piece(*text, [&](std::string_view piece) {
      checksum.update(piece);
      splitter.append(piece);
    });
    splitter.finish();
    if (writer.token_count() == 0) {
      throw_user_error(
          fmt::format("the text file '{}' is empty ({} bytes, no document)", text_path, text->size()),
          "give a file with text in it");
    }
  };
  write_token_file(files, token_path, {.vocabulary_size = byte_vocabulary::size}, fill, text->size());
  return checksum.value();
}

std::string prepare_token_file(FileEnvironment& files, const std::string& text_path,
                               const std::string& cache_directory, const TextFileOptions& options) {
  const auto status = files.status(text_path);
  const uint32_t contents = checksum_of(*files.open(text_path));
  if (!status) throw_user_error(fmt::format("the text file '{}' is gone", text_path), "check the path");
  const std::string key = fmt::format("token file 1|byte|{}|{}|{}|{:08x}|{}", text_path, status->size,
                                      status->modified_ns, contents, options.document_separator);
  const size_t slash = text_path.rfind('/');
  const std::string stem = slash == std::string::npos ? text_path : text_path.substr(slash + 1);
  const std::string path =
      join_path(cache_directory, fmt::format("{}-{:08x}-{:08x}.tokens", stem, contents, crc32c(key)));
  if (is_usable(files, path)) return path;
  files.make_directories(cache_directory);
  if (encode_text_file(files, text_path, path, options) != contents) {
    files.remove(path);
    throw_user_error(fmt::format("the text file '{}' changed while it was read", text_path),
                     "wait until it is complete, then start again");
  }
  return path;
}

}  // namespace athanor
