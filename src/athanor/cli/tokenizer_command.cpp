#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/cli/commands.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/incremental_encoder.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

// The input in pieces: the text given on the command line, a file, or standard input.
void for_each_piece(const TokenizerArguments& arguments, const std::function<void(std::string_view)>& use) {
  if (arguments.text && !arguments.input.empty()) {
    throw_user_error("--text and --input are both given", "leave one out");
  }
  if (arguments.text) return use(*arguments.text);
  std::string buffer;
  if (!arguments.input.empty() && arguments.input != "-") {
    const std::unique_ptr<ReadableFile> file = system_files().open(arguments.input);
    for (int64_t offset = 0; offset < file->size(); offset += static_cast<int64_t>(buffer.size())) {
      buffer.resize(std::min(piece_bytes, static_cast<size_t>(file->size() - offset)));
      file->read_at(offset, std::as_writable_bytes(std::span(buffer)));
      use(buffer);
    }
    return;
  }
  buffer.resize(piece_bytes);
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), stdin)) {
    use(std::string_view(buffer).substr(0, count));
  }
  if (std::ferror(stdin) != 0) throw_user_error("cannot read standard input");
}

// Calls `work` with a function that writes to --output, which appears only when all of it is written, or to
// standard output.
void with_output(const TokenizerArguments& arguments,
                 const std::function<void(const std::function<void(const std::string&)>&)>& work) {
  if (arguments.output.empty() || arguments.output == "-") return work(write_output);
  write_file_atomically(system_files(), arguments.output, [&](WritableFile& file) {
    work([&](const std::string& text) { file.append(std::as_bytes(std::span(text))); });
  });
}

struct Counts {
  int64_t bytes = 0, tokens = 0, fallback = 0;
};

std::string describe(const Counts& counts) {
  if (counts.tokens == 0) return "0 bytes, 0 tokens";
  const auto tokens = static_cast<double>(counts.tokens);
  return fmt::format(
      "{}, {}, {} bytes per token; {} ({}) of the tokens are single bytes of characters that "
      "the vocabulary lacks",
      format_counted(counts.bytes, "byte"), format_counted(counts.tokens, "token"),
      format_short(static_cast<double>(counts.bytes) / tokens), format_exact(counts.fallback),
      format_share(static_cast<double>(counts.fallback) / tokens));
}

std::string_view name_of_pattern(const TokenizerDefinition& definition) {
  if (definition.form == TextForm::characters) return "characters with marked spaces (Llama 2)";
  switch (definition.pattern) {
    case SplitPattern::gpt2:
      return "bytes, words as GPT-2";
    case SplitPattern::llama3:
      return "bytes, words as Llama 3";
    case SplitPattern::none:
      break;
  }
  return "bytes, not cut into words";
}

// Reads ids apart by anything that is white space or a comma, over the borders of pieces.
class IdReader {
 public:
  void append(std::string_view piece, std::vector<int32_t>& ids) {
    for (const char c : piece) {
      if (c >= '0' && c <= '9') {
        value_ = value_.value_or(0) * 10 + (c - '0');
        if (*value_ > 0x7fffffff) throw_user_error("an id among those to decode is too large");
      } else if (c == ' ' || c == ',' || (c >= '\t' && c <= '\r')) {
        finish(ids);
      } else {
        throw_user_error(fmt::format("'{}' among the ids to decode is no digit", printable({&c, 1})),
                         "ids are whole numbers with blanks between them, as encode prints them");
      }
    }
  }
  void finish(std::vector<int32_t>& ids) {
    if (value_) ids.push_back(static_cast<int32_t>(*value_));
    value_.reset();
  }

 private:
  std::optional<int64_t> value_;
};

}  // namespace

void tokenizer_encode_command(const TokenizerArguments& arguments) {
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(system_files(), arguments.tokenizer);
  IncrementalEncoder encoder(tokenizer, {.special_tokens = arguments.special_tokens});
  Counts counts;
  with_output(arguments, [&](const std::function<void(const std::string&)>& write) {
    std::vector<int32_t> ids;
    const auto flush = [&](bool last) {
      std::string line;
      for (const int32_t id : ids) {
        if (counts.tokens++ > 0) line += ' ';
        fmt::format_to(std::back_inserter(line), "{}", id);
        if (tokenizer->is_byte_fallback(id)) ++counts.fallback;
      }
      ids.clear();
      if (last) line += '\n';
      if (!line.empty()) write(line);
    };
    for_each_piece(arguments, [&](std::string_view piece) {
      counts.bytes += static_cast<int64_t>(piece.size());
      encoder.append(piece, ids);
      flush(false);
    });
    encoder.finish(ids);
    flush(true);
  });
  write_message(describe(counts) + "\n");
}

void tokenizer_decode_command(const TokenizerArguments& arguments) {
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(system_files(), arguments.tokenizer);
  DecodeOptions options{.special_tokens = arguments.special_tokens};
  with_output(arguments, [&](const std::function<void(const std::string&)>& write) {
    IdReader reader;
    std::vector<int32_t> ids;
    const auto flush = [&] {
      if (ids.empty()) return;
      const std::string text = tokenizer->decode(ids, options);
      options.continuation = options.continuation || !text.empty();
      ids.clear();
      write(text);
    };
    for_each_piece(arguments, [&](std::string_view piece) {
      reader.append(piece, ids);
      flush();
    });
    reader.finish(ids);
    flush();
  });
}

void tokenizer_show_command(const TokenizerArguments& arguments) {
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(system_files(), arguments.tokenizer);
  const TokenizerDefinition& definition = tokenizer->definition();
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<14}{}\n", name, value);
  };
  const auto token_row = [&](int32_t id) {
    return fmt::format("{:>8}  {}\n", id, printable(tokenizer->token_bytes(id)));
  };
  row("vocabulary", format_exact(tokenizer->vocabulary_size()));
  row("merges", format_exact(static_cast<int64_t>(definition.merges.size())));
  row("form", std::string(name_of_pattern(definition)));
  row("identity", fmt::format("{:08x}", tokenizer->identity()));
  const auto role = [&](const std::optional<int32_t>& id) {
    return id ? fmt::format("{} {}", *id, printable(tokenizer->token_bytes(*id))) : std::string("none");
  };
  row("begins text", role(tokenizer->beginning_of_text()));
  row("ends text", role(tokenizer->end_of_text()));
  if (!definition.added_tokens.empty()) text += "\nadded tokens:\n";
  for (const AddedToken& added : definition.added_tokens) text += token_row(added.id);
  if (arguments.text) {
    Counts counts{.bytes = static_cast<int64_t>(arguments.text->size())};
    text += "\ntext:\n";
    for (const int32_t id :
         tokenizer->encode(*arguments.text, {.special_tokens = arguments.special_tokens})) {
      text += token_row(id);
      ++counts.tokens;
      if (tokenizer->is_byte_fallback(id)) ++counts.fallback;
    }
    text += describe(counts) + "\n";
  }
  write_output(text);
}

}  // namespace athanor
