// What is known of the keys of config.json that hold no size: which of them change the computation, and the
// one value of each that is computed here. Internal to `hugging_face`. Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace athanor {

// Empty if `value` asks for nothing that is lacking; otherwise what the key must be ("false", "null or 1").
// `model_type`: "gpt2", "llama", "mistral".
std::string_view refusal_of(std::string_view model_type, std::string_view key, const nlohmann::json& value);

// True if `refusal_of` knows the key, or it changes nothing that is computed.
bool is_known_key(std::string_view key);

}  // namespace athanor
