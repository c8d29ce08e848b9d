#include "athanor/data/open_source.h"

#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/data/llmc_tokens.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/text_files.h"
#include "athanor/data/token_file.h"

namespace athanor {

std::shared_ptr<const TokenSource> open_token_input(FileEnvironment& files, const InputFile& input,
                                                    int64_t vocabulary_limit) {
  switch (input.kind) {
    case InputKind::megatron:
      return MegatronDataset::open(files, input.path, vocabulary_limit);
    case InputKind::llmc:
      return LlmcTokens::open(files, input.path, vocabulary_limit);
    case InputKind::tokens:
      return TokenFile::open(files, input.path);
    case InputKind::text:
    case InputKind::json_lines:
    case InputKind::unknown:
      break;
  }
  if (input.path.ends_with(".bin")) {
    const std::string index = input.path.substr(0, input.path.size() - 4) + ".idx";
    throw_user_error(fmt::format("'{}' is no file of tokens, and as part of a Megatron dataset it would "
                                 "have '{}' beside it, which is not there",
                                 input.path, index),
                     "give the folder or the name where both files are");
  }
  if (input.kind != InputKind::unknown) {
    throw_user_error(fmt::format("'{}' is a text, no file of tokens", input.path),
                     "`athanor data build` makes tokens of it");
  }
  throw_user_error(fmt::format("'{}' is no file of tokens, and its name is not that of a text", input.path),
                   "texts end in .txt, .text or .md, JSON lines in .jsonl or .ndjson; `athanor data build` "
                   "makes tokens of texts with any name");
}

std::shared_ptr<const TokenSource> open_source(FileEnvironment& files, const std::string& value,
                                               const SourceOptions& options) {
  std::vector<std::shared_ptr<const TokenSource>> parts;
  std::vector<InputFile> texts;
  const auto finish_texts = [&] {
    if (texts.empty()) return;
    const std::string path =
        prepare_token_file(files, texts, options.tokenizer, options.text, options.cache_directory);
    parts.push_back(TokenFile::open(files, path));
    texts.clear();
  };
  for (InputFile& input : find_input_files(files, value)) {
    if (input.kind == InputKind::text || input.kind == InputKind::json_lines) {
      texts.push_back(std::move(input));
      continue;
    }
    finish_texts();
    parts.push_back(open_token_input(files, input, options.vocabulary_limit));
  }
  finish_texts();
  return parts.size() == 1 ? parts.front() : std::make_shared<TokenStream>(std::move(parts));
}

}  // namespace athanor
