// The logical names of one layer: templates write "{layer}" where its number goes.
//
// Called wherever a template becomes a call: model tables, assembly, verifier, execution. Thread safety:
// pure.
#pragma once

#include <cstdint>
#include <string>

namespace athanor {

// "block.{layer}.x" -> "block.3.x"; a text without the mark stays as it is.
std::string fill_layer(std::string text, int64_t layer);

}  // namespace athanor
