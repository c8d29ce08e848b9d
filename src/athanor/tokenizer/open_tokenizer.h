// Opens tokenizers by name or from files of several formats (docs/formats/tokenizer.md).
//
// Called by train, data preparation and commands. Thread safety: pure functions.
#pragma once

#include <memory>
#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

// `name_or_path` is one of
//   bytes              ids 0 to 255 are the bytes of the text, 256 ends it; no file
//   FILE.json          Hugging Face's tokenizer.json
//   vocab.json         GPT-2's, with merges.txt beside it (also for names like x-vocab.json, x-merges.txt)
//   FOLDER             with a tokenizer.json, or else a vocab.json and merges.txt, in it
// A file that is damaged, or asks for what there is no support for, is an Error (user) that names it.
std::shared_ptr<const Tokenizer> open_tokenizer(FileEnvironment& files, const std::string& name_or_path);

}  // namespace athanor
