#include "athanor/tokenizer/token_lists.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace athanor {

void TokenLists::read_vocabulary(const JsonFields& fields, const Json& vocabulary) {
  if (!vocabulary.is_object()) fields.refuse("the vocabulary should be an object of tokens and ids");
  ids.reserve(vocabulary.size());
  const size_t most_ids = 2 * vocabulary.size() + 1024;  // gaps are allowed, memory in proportion to the file
  for (const auto& [token, value] : vocabulary.items()) {
    const int32_t id = fields.id(value, token);
    const auto place = static_cast<size_t>(id);
    if (place >= most_ids) {
      fields.refuse(fmt::format("token \"{}\" has the id {}, but there are {} tokens", shortened(token), id,
                                vocabulary.size()));
    }
    if (place >= tokens.size()) tokens.resize(place + 1);
    if (!tokens[place].empty()) {
      fields.refuse(fmt::format("the tokens \"{}\" and \"{}\" have the same id {}", shortened(tokens[place]),
                                shortened(token), id));
    }
    tokens[place] = token;
    ids.emplace(token, id);
  }
  if (tokens.empty()) fields.refuse("the vocabulary is empty");
}

void TokenLists::add_merge(const JsonFields& fields, const std::string& left, const std::string& right) {
  const auto id_of = [&](const std::string& token) {
    const auto place = ids.find(token);
    if (place == ids.end() || token.empty()) {
      fields.refuse(
          fmt::format("merge {} (\"{}\" and \"{}\") is of or gives a token that the vocabulary lacks",
                      merges.size(), shortened(left), shortened(right)));
    }
    return place->second;
  };
  merges.push_back({id_of(left), id_of(right), id_of(left + right)});
}

void TokenLists::add_merge(const JsonFields& fields, const std::string& line) {
  const size_t blank = line.find(' ');
  if (blank == std::string::npos || line.find(' ', blank + 1) != std::string::npos) {
    fields.refuse(fmt::format("merge {} (\"{}\") should be two tokens with a blank between them",
                              merges.size(), shortened(line)));
  }
  add_merge(fields, line.substr(0, blank), line.substr(blank + 1));
}

}  // namespace athanor
