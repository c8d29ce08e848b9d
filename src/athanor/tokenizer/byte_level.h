// The printable alphabet that byte-level tokenizers are written in: a code point for each byte, so that
// tokens are readable text in their files (docs/formats/tokenizer.md).
//
// Called by readers and writers of tokenizer files. Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace athanor {

std::string to_byte_alphabet(std::string_view bytes);
// Nothing if some character is none of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace athanor
