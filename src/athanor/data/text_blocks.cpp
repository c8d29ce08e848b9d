#include "athanor/data/text_blocks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr size_t largest_block_bytes = size_t{1} << 28;
constexpr size_t largest_line_bytes = size_t{1} << 26;  // JSON takes many times its size while it is read

// A whole line without its line feed.
bool is_separator(std::string_view line, std::string_view separator) {
  return line.starts_with(separator) &&
         (line.size() == separator.size() || line.substr(separator.size()) == "\r");
}

// A line that goes on in the next block.
bool may_become_separator(std::string_view line, std::string_view separator) {
  return separator.starts_with(line) || is_separator(line, separator);
}

}  // namespace

TextBlocks::TextBlocks(FileEnvironment& files, std::vector<InputFile> inputs,
                       std::shared_ptr<const Tokenizer> tokenizer, std::string separator, size_t block_bytes,
                       TextPlace begin)
    : files_(files),
      inputs_(std::move(inputs)),
      tokenizer_(std::move(tokenizer)),
      separator_(std::move(separator)),
      block_bytes_(block_bytes),
      place_(begin) {
  if (separator_.find_first_of("\r\n") != std::string::npos) {
    throw_user_error("the document separator holds a line break", "it is compared with one line at a time");
  }
}

std::string TextBlocks::read(size_t size) const {
  std::string bytes(size, '\0');
  file_->read_at(place_.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::optional<TextBlock> TextBlocks::next() {
  for (;;) {
    if (static_cast<size_t>(place_.file) >= inputs_.size()) return std::nullopt;
    const InputFile& input = inputs_[static_cast<size_t>(place_.file)];
    ATHANOR_ASSERT(input.kind == InputKind::text || input.kind == InputKind::json_lines);
    if (!file_) file_ = files_.open(input.path);
    const auto left = static_cast<size_t>(std::max<int64_t>(0, file_->size() - place_.offset));
    for (size_t size = block_bytes_;; size *= 2) {
      const size_t largest = input.kind == InputKind::text ? largest_block_bytes : largest_line_bytes;
      if (size > largest) {
        throw_user_error(fmt::format("'{}', byte {}: {} MiB without a place to cut at", input.path,
                                     place_.offset, largest >> 20),
                         input.kind == InputKind::text ? "text has spaces or line breaks now and then"
                                                       : "each line is one JSON object");
      }
      const bool to_end = left <= size;
      const std::string bytes = read(std::min(left, size));
      TextBlock block = input.kind == InputKind::text ? text_block(bytes, to_end) : line_block(bytes, to_end);
      if (block.after == place_) {  // nothing could be cut off
        if (!to_end) continue;
        break;
      }
      block.kind = input.kind;
      block.path = input.path;
      block.input_bytes = block.after.offset - place_.offset;
      if (block.after.offset == file_->size()) {
        block.after = {.file = place_.file + 1};
        file_.reset();
      }
      place_ = block.after;
      return block;
    }
    place_ = {.file = place_.file + 1};  // an empty file
    file_.reset();
  }
}

TextBlock TextBlocks::line_block(const std::string& bytes, bool to_end) const {
  TextBlock block{.first_line = place_.line + 1, .after = place_};
  const size_t feed = bytes.rfind('\n');
  const size_t end = to_end ? bytes.size() : feed == std::string::npos ? 0 : feed + 1;
  block.bytes = bytes.substr(0, end);
  block.after.offset += static_cast<int64_t>(end);
  block.after.line += std::count(block.bytes.begin(), block.bytes.end(), '\n');
  return block;
}

TextBlock TextBlocks::text_block(const std::string& bytes, bool to_end) const {
  TextBlock block{.after = place_};
  const std::string_view text = bytes;
  bool open = place_.document_open;
  size_t begin = 0;  // of the stretch at hand
  size_t end = text.size();
  const auto add = [&](size_t until, bool ends_document) {
    block.stretches.push_back({begin, until, open, ends_document});
    open = !ends_document && (open || until > begin);
  };
  size_t line = 0;
  bool at_line_start = place_.at_line_start;
  while (!separator_.empty() && line < text.size()) {
    const size_t feed = text.find('\n', line);
    const bool whole = feed != std::string_view::npos;
    const std::string_view content = text.substr(line, whole ? feed - line : std::string_view::npos);
    const bool separates = at_line_start && (whole || to_end) && is_separator(content, separator_);
    if (separates) {
      add(line, true);
      begin = whole ? feed + 1 : text.size();
    } else if (at_line_start && !whole && !to_end && may_become_separator(content, separator_)) {
      end = line;  // the next block sees more of it
      break;
    }
    if (!whole) break;
    line = feed + 1;
    at_line_start = true;
  }
  if (to_end) {
    if (open || end > begin) add(end, true);
  } else {
    end = begin + tokenizer_->last_safe_cut(text.substr(begin, end - begin), {.continuation = open});
    if (end > begin) add(end, false);
  }
  block.bytes = bytes.substr(0, end);
  block.after.offset += static_cast<int64_t>(end);
  block.after.document_open = open;
  if (end > 0) block.after.at_line_start = text[end - 1] == '\n';
  return block;
}

}  // namespace athanor
