// The ways a chat becomes text.
//
// Called by options and the reader of records (text_records.h). Thread safety: values.
#pragma once

#include <cstdint>

namespace athanor {

// How a chat, or a prompt and its answer, becomes text. Only what the assistant says is learned, with what
// ends its turn. docs/formats/text_input.md shows each template.
enum class ChatTemplate : uint8_t { plain, chatml, llama3 };

}  // namespace athanor
