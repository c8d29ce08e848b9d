#include "athanor/tokenizer/split_patterns.h"

#include "athanor/base/error.h"

namespace athanor {
namespace {

struct Spelling {
  std::string_view regex;
  SplitPattern pattern;
};

// The first of each pattern is the one that is written. Those that end in \s instead of \s+ come to it only
// with one character of white space left; [\r\n] after \s* means the last line break of a run, with or
// without +.
constexpr Spelling spellings[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
     SplitPattern::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
};

}  // namespace

std::optional<SplitPattern> find_split_pattern(std::string_view regex) {
  for (const Spelling& spelling : spellings) {
    if (spelling.regex == regex) return spelling.pattern;
  }
  return std::nullopt;
}

std::string_view regex_of(SplitPattern pattern) {
  for (const Spelling& spelling : spellings) {
    if (spelling.pattern == pattern) return spelling.regex;
  }
  ATHANOR_ASSERT(false);
}

}  // namespace athanor
