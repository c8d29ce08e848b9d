#include "athanor/data/text_files.h"

#include <algorithm>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

uint32_t checksum_of(const ReadableFile& file) {
  constexpr int64_t piece_bytes = int64_t{1} << 20;
  Crc32c checksum;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(piece_bytes, file.size())));
  for (int64_t offset = 0; offset < file.size(); offset += static_cast<int64_t>(buffer.size())) {
    buffer.resize(static_cast<size_t>(std::min(piece_bytes, file.size() - offset)));
    file.read_at(offset, buffer);
    checksum.update(buffer);
  }
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

FileStatus status_of(FileEnvironment& files, const std::string& path) {
  const auto status = files.status(path);
  if (!status) throw_user_error(fmt::format("the file '{}' is gone", path), "check the path");
  return *status;
}

}  // namespace

TokenFileOptions token_file_options(const Tokenizer& tokenizer) {
  return {.vocabulary_size = tokenizer.vocabulary_size(), .tokenizer_identity = tokenizer.identity()};
}

void encode_text_files(FileEnvironment& files, const std::vector<InputFile>& inputs,
                       const std::shared_ptr<const Tokenizer>& tokenizer, const TextOptions& options,
                       const std::string& token_path) {
  const auto fill = [&](TokenFileWriter& writer) {
    TextEncoder encoder(files, inputs, tokenizer, options);
    while (const auto block = encoder.next()) write_block(*block, writer);
    if (writer.token_count() > 0) return;
    int64_t bytes = 0;
    for (const InputFile& input : inputs) bytes += status_of(files, input.path).size;
    throw_user_error(fmt::format("the text '{}' is empty ({} file{}, {} byte{}, no document)",
                                 inputs.empty() ? "" : inputs.front().path, inputs.size(),
                                 plural(std::ssize(inputs)), bytes, plural(bytes)),
                     "give a file with text in it");
  };
  write_token_file(files, token_path, token_file_options(*tokenizer), fill);
}

std::string prepare_token_file(FileEnvironment& files, const std::vector<InputFile>& inputs,
                               const std::shared_ptr<const Tokenizer>& tokenizer, const TextOptions& options,
                               const std::string& cache_directory) {
  ATHANOR_ASSERT(!inputs.empty());
  std::string key = fmt::format("token file 2|{:08x}|{}|{}|{}|{}", tokenizer->identity(), options.separator,
                                options.field, static_cast<int>(options.chat), options.skip_bad);
  Crc32c contents;
  const auto state = [&] {
    std::string text;
    for (const InputFile& input : inputs) {
      const FileStatus status = status_of(files, input.path);
      text += fmt::format("|{}|{}|{}", input.path, status.size, status.modified_ns);
    }
    return text;
  };
  const std::string before = state();
  for (const InputFile& input : inputs) {
    const uint32_t checksum = checksum_of(*files.open(input.path));
    contents.update(std::as_bytes(std::span(&checksum, 1)));
  }
  key += before + fmt::format("|{:08x}", contents.value());
  const std::string& first = inputs.front().path;
  const std::string stem = first.substr(first.rfind('/') + 1);
  const std::string path =
      join_path(cache_directory, fmt::format("{}-{:08x}-{:08x}.tokens", stem, contents.value(), crc32c(key)));
  if (is_usable(files, path)) return path;
  files.make_directories(cache_directory);
  encode_text_files(files, inputs, tokenizer, options, path);
  if (state() != before) {
    files.remove(path);
    throw_user_error(fmt::format("the text '{}' changed while it was read", first),
                     "wait until it is complete, then start again");
  }
  return path;
}

}  // namespace athanor
