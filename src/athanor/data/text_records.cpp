#include "athanor/data/text_records.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

constexpr int deepest = 64;  // each level takes memory
constexpr const char* hint =
    "a line is an object with \"messages\", with \"prompt\" and \"answer\", or with the text field";

std::vector<std::string_view> special_tokens(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::plain:
      break;
    case ChatTemplate::chatml:
      return {"<|im_start|>", "<|im_end|>"};
    case ChatTemplate::llama3:
      return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  }
  return {};
}

std::string string_member(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) throw_user_error(fmt::format("there is no \"{}\"", name), hint);
  if (!found->is_string()) {
    throw_user_error(fmt::format("\"{}\" is no string but {}", name, found->type_name()), hint);
  }
  return found->get<std::string>();
}

std::string trimmed(const std::string& text) {
  constexpr const char* blanks = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(blanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace

TextRecordReader::TextRecordReader(const Tokenizer& tokenizer, ChatTemplate chat, std::string field)
    : chat_(chat), field_(std::move(field)) {
  for (const std::string_view name : special_tokens(chat)) {
    if (tokenizer.encode(name, {.special_tokens = true}).size() == 1) continue;
    throw_user_error(
        fmt::format("the tokenizer has no special token {}, which the chat template needs", name),
        "use the template plain, or the tokenizer of a model that was made for this one");
  }
}

void TextRecordReader::add_message(const std::string& role, const std::string& content,
                                   TextRecord& record) const {
  constexpr std::array<std::string_view, 3> roles = {"system", "user", "assistant"};
  constexpr std::array<std::string_view, 3> labels = {"System: ", "User: ", "Assistant: "};
  size_t number = 0;
  while (number < roles.size() && roles.at(number) != role) ++number;
  if (number == roles.size()) {
    throw_user_error(fmt::format("the role is \"{}\"", role.substr(0, 60)),
                     "there are \"system\", \"user\" and \"assistant\"");
  }
  const bool learned = role == "assistant";
  const auto add = [&](std::string text, bool counts, bool special = false) {
    if (!text.empty()) record.parts.push_back({std::move(text), counts, special});
  };
  switch (chat_) {
    case ChatTemplate::plain:
      add(std::string(labels.at(number)), false);
      add(content + "\n", learned);
      record.end_learned = learned;
      return;
    case ChatTemplate::chatml:
      add("<|im_start|>", false, true);
      add(role + "\n", false);
      add(content, learned);
      add("<|im_end|>", learned, true);
      add("\n", false);
      break;
    case ChatTemplate::llama3:
      if (record.parts.empty()) add("<|begin_of_text|>", false, true);
      add("<|start_header_id|>", false, true);
      add(role, false);
      add("<|end_header_id|>", false, true);
      add("\n\n", false);
      add(trimmed(content), learned);
      add("<|eot_id|>", learned, true);
      break;
  }
  record.end_learned = false;  // the turn has ended already
}

TextRecord TextRecordReader::read(std::string_view json) const {
  // The parser would take it for the end.
  if (json.find('\0') != std::string_view::npos) throw_user_error("this is no JSON: it has a NUL byte", hint);
  Json object;
  try {
    object = Json::parse(json, [](int depth, Json::parse_event_t, const Json&) {
      if (depth > deepest) throw_user_error(fmt::format("it is nested more than {} deep", deepest), hint);
      return true;
    });
  } catch (const Json::exception& error) {
    // The library begins with its own name for the error and with the line, which is 1 here: the caller tells
    // the line of the file.
    const std::string_view what = error.what();
    const size_t place = what.find("column ");
    throw_user_error(
        fmt::format("this is no JSON: {}", what.substr(place == std::string_view::npos ? 0 : place)), hint);
  }
  if (!object.is_object()) {
    throw_user_error(fmt::format("this is no JSON object but {}", object.type_name()), hint);
  }
  TextRecord record;
  if (const auto messages = object.find("messages"); messages != object.end()) {
    if (!messages->is_array()) throw_user_error("\"messages\" is no list", hint);
    for (const Json& message : *messages) {
      if (!message.is_object()) throw_user_error("a message is no object", hint);
      add_message(string_member(message, "role"), string_member(message, "content"), record);
    }
  } else if (object.contains("prompt") && object.contains("answer")) {
    const std::string prompt = string_member(object, "prompt"), answer = string_member(object, "answer");
    if (chat_ == ChatTemplate::plain) {
      if (!prompt.empty()) record.parts.push_back({prompt, false});
      if (!answer.empty()) record.parts.push_back({answer, true});
    } else {
      add_message("user", prompt, record);
      add_message("assistant", answer, record);
    }
  } else if (object.contains(field_)) {
    std::string text = string_member(object, field_);
    if (!text.empty()) record.parts.push_back({std::move(text)});
  } else {
    throw_user_error(
        fmt::format("there is neither \"messages\", nor \"prompt\" and \"answer\", nor \"{}\"", field_),
        hint);
  }
  return record;
}

}  // namespace athanor
