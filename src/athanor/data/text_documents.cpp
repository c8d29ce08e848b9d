#include "athanor/data/text_documents.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;
constexpr size_t longest_line = size_t{1} << 28;

TextDocuments::Stream stream_of(FileEnvironment& files, const std::string& path) {
  const std::shared_ptr<const ReadableFile> file = files.open(path);
  return [file, offset = int64_t{0}](size_t most) mutable {
    std::string bytes(static_cast<size_t>(std::min(static_cast<int64_t>(most), file->size() - offset)), '\0');
    if (!bytes.empty()) file->read_at(offset, std::as_writable_bytes(std::span(bytes)));
    offset += static_cast<int64_t>(bytes.size());
    return bytes;
  };
}

}  // namespace

TextDocuments::TextDocuments(FileEnvironment& files, std::vector<InputFile> inputs,
                             TextDocumentOptions options, Stream stream)
    : files_(files),
      inputs_(std::move(inputs)),
      options_(std::move(options)),
      records_(*open_tokenizer(files, "bytes"), ChatTemplate::plain, options_.field),
      stream_(std::move(stream)) {
  for (const InputFile& input : inputs_) {
    if (input.kind != InputKind::text && input.kind != InputKind::json_lines &&
        input.kind != InputKind::unknown) {
      throw_user_error(fmt::format("{} holds tokens, not text", input.path),
                       "a tokenizer is trained on text or on JSON lines");
    }
    if (const auto status = files_.status(input.path)) file_bytes_ += status->size;
  }
}

TextDocuments::~TextDocuments() = default;

TextSource::Next TextDocuments::next(std::string& text) {
  text.clear();
  for (;;) {
    if (!input_ && !open_next()) return Next::end;
    const auto result = input_->kind == InputKind::json_lines ? next_record(text) : next_text(text);
    if (result) return *result;
    input_.reset();
  }
}

bool TextDocuments::open_next() {
  buffer_.clear();
  begin_ = 0;
  input_ended_ = false;
  at_line_start_ = true;
  line_ = 0;
  if (stream_) {
    input_ = Input{"standard input", InputKind::text, std::exchange(stream_, {})};
    return true;
  }
  if (next_input_ == inputs_.size()) return false;
  const InputFile& file = inputs_[next_input_++];
  input_ = Input{file.path, file.kind, stream_of(files_, file.path)};
  return true;
}

void TextDocuments::drop_used() {
  buffer_.erase(0, begin_);
  begin_ = 0;
}

bool TextDocuments::fill() {
  if (input_ended_) return false;
  drop_used();
  const std::string more = input_->read(piece_bytes);
  input_ended_ = more.empty();
  buffer_ += more;
  return !input_ended_;
}

std::string TextDocuments::take(size_t size) {
  std::string text = buffer_.substr(begin_, size);
  begin_ += size;
  return text;
}

bool TextDocuments::is_separator(std::string_view line) const {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line == options_.separator;
}

// Up to the next separator or the end of what has been read. Nothing when the input is used up.
std::optional<TextSource::Next> TextDocuments::next_text(std::string& text) {
  if (begin_ == buffer_.size() && !fill()) return std::nullopt;
  if (options_.separator.empty()) {
    text = take(buffer_.size() - begin_);
    return fill() ? Next::part : Next::document;
  }
  size_t line = begin_;
  bool whole_line = at_line_start_;
  for (;;) {
    size_t end = buffer_.find('\n', line);
    if (end == std::string::npos) {
      const size_t length = buffer_.size() - line;
      // A short beginning of a line may yet become a separator.
      if (whole_line && length <= options_.separator.size() + 1 && !input_ended_) {
        line -= begin_;
        fill();
        line += begin_;
        continue;
      }
      end = buffer_.size();
    }
    if (whole_line && is_separator(std::string_view(buffer_).substr(line, end - line))) {
      text = take(line - begin_);
      begin_ = std::min(end + 1, buffer_.size());
      at_line_start_ = true;
      return Next::document;
    }
    if (end == buffer_.size()) break;
    line = end + 1;
    whole_line = true;
    if (line == buffer_.size()) break;
  }
  at_line_start_ = buffer_.ends_with('\n');
  text = take(buffer_.size() - begin_);
  return input_ended_ || !fill() ? Next::document : Next::part;
}

// The next part of a record that has text. A record's parts are documents of their own: no word reaches from
// a question into its answer.
std::optional<TextSource::Next> TextDocuments::next_record(std::string& text) {
  while (ready_.empty()) {
    size_t end = buffer_.find('\n', begin_);
    while (end == std::string::npos) {
      const size_t searched = buffer_.size() - begin_;
      if (searched > longest_line) {
        throw_user_error(fmt::format("{}:{}: the line is longer than 256 MiB", input_->path, line_ + 1),
                         "JSON lines have one record a line");
      }
      if (!fill()) break;
      end = buffer_.find('\n', begin_ + searched);
    }
    if (end == std::string::npos) {
      if (begin_ == buffer_.size()) return std::nullopt;
      end = buffer_.size();
    }
    std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    ++line_;
    if (line_ == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      for (TextPart& part : records_.read(line).parts) {
        if (!part.special && !part.text.empty()) ready_.push_back(std::move(part.text));
      }
    } catch (const Error& error) {
      throw_user_error(fmt::format("{}:{}: {}", input_->path, line_, error.message()), error.hint());
    }
  }
  text = std::move(ready_.front());
  ready_.pop_front();
  return Next::document;
}

}  // namespace athanor
