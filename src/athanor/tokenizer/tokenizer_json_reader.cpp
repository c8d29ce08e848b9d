// nlohmann/json is included by this file of the room only: it takes seconds to compile.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/tokenizer/byte_level.h"
#include "athanor/tokenizer/split_patterns.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

// Special tokens that end a text, by the names that published tokenizers have for them; the first that is
// there.
constexpr const char* usual_end_names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"};

std::string shortened(std::string text) {
  constexpr size_t longest = 200;
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void refuse(
      const std::string& what,
      const std::string& hint = "the file is damaged, or another than it is taken for") const {
    throw_user_error(fmt::format("{}: {}", path_, what), hint);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    refuse(what + " is not supported", "it would change the ids, so it is not left out");
  }

  Json parse(std::string_view text) const {
    try {
      return Json::parse(text);
    } catch (const Json::exception& error) {
      refuse(fmt::format("is no JSON ({})", shortened(error.what())));
    }
  }

  // A field that may be missing or null.
  const Json* find(const Json& object, const char* name) const {
    if (!object.is_object()) refuse(fmt::format("there should be an object with a field \"{}\"", name));
    const auto place = object.find(name);
    return place == object.end() || place->is_null() ? nullptr : &*place;
  }
  std::string string(const Json& object, const char* name, const char* missing = nullptr) const {
    const Json* value = find(object, name);
    if (value == nullptr && missing != nullptr) return missing;
    if (value == nullptr || !value->is_string()) refuse(fmt::format("\"{}\" should be a string", name));
    return value->get<std::string>();
  }
  bool boolean(const Json& object, const char* name, bool missing) const {
    const Json* value = find(object, name);
    if (value == nullptr) return missing;
    if (!value->is_boolean()) refuse(fmt::format("\"{}\" should be true or false", name));
    return value->get<bool>();
  }
  int32_t id(const Json& value, const std::string& what) const {
    constexpr int64_t largest = (int64_t{1} << 31) - 2;
    if (!value.is_number_integer() || value < 0 || value > largest) {
      refuse(fmt::format("the id of {} should be a whole number from 0 to {}", what, largest));
    }
    return value.get<int32_t>();
  }
  // A component and those that a Sequence of it lists, in order.
  std::vector<const Json*> components(const Json& object, const char* name, const char* list) const {
    std::vector<const Json*> found;
    if (const Json* value = find(object, name)) add_components(*value, name, list, 0, found);
    return found;
  }
  std::string type_of(const Json& component) const { return string(component, "type"); }

 private:
  void add_components(const Json& value, const char* name, const char* list, int depth,
                      std::vector<const Json*>& found) const {
    if (type_of(value) != "Sequence") return found.push_back(&value);
    const Json* parts = find(value, list);
    if (parts == nullptr || !parts->is_array() || depth > 8) {
      refuse(fmt::format("the Sequence of \"{}\" should have a list \"{}\"", name, list));
    }
    for (const Json& part : *parts) add_components(part, name, list, depth + 1, found);
  }

  std::string path_;
};

// The vocabulary and merges of a file, by the text of tokens as it stands there.
struct Model {
  std::vector<std::string> tokens;  // by id; empty: a gap
  std::unordered_map<std::string, int32_t> ids;
  std::vector<TokenMerge> merges;

  void read_vocabulary(const Reader& reader, const Json& vocabulary) {
    if (!vocabulary.is_object()) reader.refuse("the vocabulary should be an object of tokens and ids");
    const size_t most_ids =
        2 * vocabulary.size() + 1024;  // gaps are allowed, memory in proportion to the file
    for (const auto& [token, value] : vocabulary.items()) {
      const int32_t id = reader.id(value, fmt::format("the token \"{}\"", shortened(token)));
      const auto place = static_cast<size_t>(id);
      if (place >= most_ids) {
        reader.refuse(fmt::format("token \"{}\" has the id {}, but there are {} tokens", shortened(token), id,
                                  vocabulary.size()));
      }
      if (place >= tokens.size()) tokens.resize(place + 1);
      if (!tokens[place].empty()) {
        reader.refuse(fmt::format("the tokens \"{}\" and \"{}\" have the same id {}",
                                  shortened(tokens[place]), shortened(token), id));
      }
      tokens[place] = token;
      ids.emplace(token, id);
    }
    if (tokens.empty()) reader.refuse("the vocabulary is empty");
  }

  void add_merge(const Reader& reader, const std::string& left, const std::string& right) {
    const auto id_of = [&](const std::string& token) {
      const auto place = ids.find(token);
      if (place == ids.end() || token.empty()) {
        reader.refuse(
            fmt::format("merge {} (\"{}\" and \"{}\") is of or gives a token that the vocabulary lacks",
                        merges.size(), shortened(left), shortened(right)));
      }
      return place->second;
    };
    merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }

  void add_merge(const Reader& reader, const std::string& line) {
    const size_t blank = line.find(' ');
    if (blank == std::string::npos || line.find(' ', blank + 1) != std::string::npos) {
      reader.refuse(fmt::format("merge {} (\"{}\") should be two tokens with a blank between them",
                                merges.size(), shortened(line)));
    }
    add_merge(reader, line.substr(0, blank), line.substr(blank + 1));
  }
};

AddedToken read_added_token(const Reader& reader, const Json& value) {
  AddedToken added;
  const Json* id = reader.find(value, "id");
  added.content = reader.string(value, "content");
  const std::string name = fmt::format("the added token \"{}\"", shortened(added.content));
  if (id == nullptr) reader.refuse(name + " has no id");
  added.id = reader.id(*id, name);
  if (reader.boolean(value, "single_word", false))
    reader.unsupported(fmt::format("\"single_word\" of {}", name));
  added.left_strip = reader.boolean(value, "lstrip", false);
  added.right_strip = reader.boolean(value, "rstrip", false);
  added.special = reader.boolean(value, "special", false);
  added.normalized = reader.boolean(value, "normalized", !added.special);
  return added;
}

class DefinitionReader {
 public:
  explicit DefinitionReader(const Reader& reader) : reader_(reader) {}

  TokenizerDefinition read(const Json& file, const TokenizerRoles& roles) {
    const std::string version = reader_.string(file, "version", "1.0");
    if (version != "1.0") reader_.unsupported(fmt::format("version \"{}\"", shortened(version)));
    for (const char* name : {"truncation", "padding"}) {
      if (reader_.find(file, name) != nullptr)
        reader_.unsupported(fmt::format("\"{}\" other than null", name));
    }
    read_normalizer(file);
    read_pre_tokenizer(file);
    read_model(file);
    read_added_tokens(file);
    read_decoder(file);
    set_tokens();
    read_post_processor(file);
    set_roles(roles);
    return std::move(definition_);
  }

  TokenizerDefinition read_pair(Model model, const TokenizerRoles& roles) {
    model_ = std::move(model);
    std::vector<std::string> names{usual_end_names[0]};
    for (const std::string& name : {roles.beginning_of_text, roles.end_of_text}) {
      if (!name.empty() && name != names[0]) names.push_back(name);
    }
    for (const std::string& name : names) {
      const auto place = model_.ids.find(name);
      if (place != model_.ids.end() && find_added(name) == nullptr) {
        definition_.added_tokens.push_back({.id = place->second, .content = name});
      }
    }
    set_tokens();
    set_roles(roles);
    return std::move(definition_);
  }

 private:
  void read_normalizer(const Json& file) {
    for (const Json* part : reader_.components(file, "normalizer", "normalizers")) {
      const std::string type = reader_.type_of(*part);
      if (type == "Prepend" && reader_.string(*part, "prepend") == space_mark && !marks_spaces_ &&
          definition_.prefix == SpacePrefix::none) {
        definition_.prefix = SpacePrefix::always;
      } else if (type == "Replace" && is_replace(*part, " ", space_mark) && !marks_spaces_) {
        marks_spaces_ = true;
      } else {
        reader_.unsupported(fmt::format("the normalizer {}", shortened(part->dump())));
      }
    }
    if (definition_.prefix != SpacePrefix::none && !marks_spaces_) {
      reader_.unsupported("the normalizer Prepend without Replace");
    }
    definition_.added_in_marked_text = marks_spaces_;
  }

  bool is_replace(const Json& part, std::string_view from, std::string_view to) const {
    const Json* pattern = reader_.find(part, "pattern");
    return pattern != nullptr && pattern->is_object() && pattern->size() == 1 &&
           pattern->contains("String") && (*pattern)["String"] == from &&
           reader_.string(part, "content") == to;
  }

  void read_pre_tokenizer(const Json& file) {
    bool has_byte_level = false, has_split = false, has_metaspace = false;
    for (const Json* part : reader_.components(file, "pre_tokenizer", "pretokenizers")) {
      const std::string type = reader_.type_of(*part);
      if (has_byte_level || has_metaspace)
        reader_.unsupported(fmt::format("the pre-tokenizer {} after another", type));
      if (type == "ByteLevel") {
        has_byte_level = true;
        const bool add_prefix_space = reader_.boolean(*part, "add_prefix_space", true);
        const bool use_regex = reader_.boolean(*part, "use_regex", true);
        if (has_split && (add_prefix_space || use_regex)) {
          reader_.unsupported("ByteLevel with add_prefix_space or use_regex after Split");
        }
        if (!has_split) definition_.pattern = use_regex ? SplitPattern::gpt2 : SplitPattern::none;
        if (add_prefix_space) definition_.prefix = SpacePrefix::unless_space;
      } else if (type == "Split" && !has_split) {
        has_split = true;
        definition_.pattern = read_split(*part);
      } else if (type == "Metaspace" && !has_split && !marks_spaces_) {
        has_metaspace = true;
        read_metaspace(*part);
      } else {
        reader_.unsupported(fmt::format("the pre-tokenizer {}", shortened(part->dump())));
      }
    }
    if (has_split && !has_byte_level) reader_.unsupported("the pre-tokenizer Split without ByteLevel");
    if (has_byte_level == (marks_spaces_ || has_metaspace)) {
      reader_.unsupported(has_byte_level
                              ? "ByteLevel together with a normalizer"
                              : "a pre-tokenizer or normalizer that is neither ByteLevel nor marks spaces");
    }
    definition_.form = has_byte_level ? TextForm::bytes : TextForm::characters;
    if (!has_byte_level) definition_.pattern = SplitPattern::none;
  }

  SplitPattern read_split(const Json& part) const {
    const Json* pattern = reader_.find(part, "pattern");
    if (pattern == nullptr || !pattern->is_object() || !pattern->contains("Regex") ||
        !(*pattern)["Regex"].is_string()) {
      reader_.unsupported(fmt::format("the pre-tokenizer {}", shortened(part.dump())));
    }
    const std::string regex = (*pattern)["Regex"].get<std::string>();
    const std::string behavior = reader_.string(part, "behavior");
    const bool invert = reader_.boolean(part, "invert", false);
    // The known patterns match all of a text, so that nothing lies between the matches.
    if (!(behavior == "Isolated" || (behavior == "Removed" && invert))) {
      reader_.unsupported(fmt::format("Split with the behavior {}", shortened(behavior)));
    }
    const std::optional<SplitPattern> known = find_split_pattern(regex);
    if (!known) {
      reader_.refuse(fmt::format("the splitting pattern {} is not supported", shortened(regex)),
                     "those of GPT-2 and Llama 3 are");
    }
    return *known;
  }

  void read_metaspace(const Json& part) {
    if (reader_.string(part, "replacement", "\xe2\x96\x81") != space_mark) {
      reader_.unsupported("Metaspace with another mark than U+2581");
    }
    definition_.word_at_each_space = reader_.boolean(part, "split", true);
    definition_.prefix = read_prepend_scheme(part);
  }

  SpacePrefix read_prepend_scheme(const Json& part) const {
    const bool old = reader_.boolean(part, "add_prefix_space", true);
    const std::string scheme = reader_.string(part, "prepend_scheme", old ? "always" : "never");
    if (scheme == "always") return SpacePrefix::unless_space;
    if (scheme == "first") return SpacePrefix::first_unless_space;
    if (scheme == "never") return SpacePrefix::none;
    reader_.unsupported(fmt::format("the prepend_scheme {}", shortened(scheme)));
  }

  void read_model(const Json& file) {
    const Json* model = reader_.find(file, "model");
    if (model == nullptr) reader_.refuse("has no \"model\"", "is it a tokenizer.json?");
    const std::string type = reader_.string(*model, "type", "BPE");
    if (type != "BPE") reader_.unsupported(fmt::format("a model of the type {}", shortened(type)));
    const Json* dropout = reader_.find(*model, "dropout");
    if (dropout != nullptr && *dropout != 0.0) reader_.unsupported("\"dropout\"");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!reader_.string(*model, name, "").empty()) reader_.unsupported(fmt::format("\"{}\"", name));
    }
    // Every byte has a token, so that the token for what is unknown is never used.
    reader_.string(*model, "unk_token", "");
    reader_.boolean(*model, "fuse_unk", false);
    if (!reader_.boolean(*model, "byte_fallback", false) && definition_.form == TextForm::characters) {
      reader_.refuse("a model of characters without \"byte_fallback\" is not supported",
                     "it would lose the characters that it has no token for");
    }
    definition_.whole_words_first = reader_.boolean(*model, "ignore_merges", false);
    const Json* vocabulary = reader_.find(*model, "vocab");
    const Json* merges = reader_.find(*model, "merges");
    if (vocabulary == nullptr || merges == nullptr || !merges->is_array()) {
      reader_.refuse("\"model\" should have \"vocab\" and a list \"merges\"");
    }
    model_.read_vocabulary(reader_, *vocabulary);
    for (const Json& merge : *merges) {
      if (merge.is_string()) {
        model_.add_merge(reader_, merge.get<std::string>());
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        model_.add_merge(reader_, merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        reader_.refuse(fmt::format("merge {} should be a string or a pair of strings", model_.merges.size()));
      }
    }
  }

  const AddedToken* find_added(std::string_view content) const {
    for (const AddedToken& added : definition_.added_tokens) {
      if (added.content == content) return &added;
    }
    return nullptr;
  }

  void read_added_tokens(const Json& file) {
    const Json* list = reader_.find(file, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) reader_.refuse("\"added_tokens\" should be a list");
    for (const Json& value : *list) {
      AddedToken added = read_added_token(reader_, value);
      const auto known = model_.ids.find(added.content);
      const auto place = static_cast<size_t>(added.id);
      const bool other_content = place < model_.tokens.size() && !model_.tokens[place].empty() &&
                                 model_.tokens[place] != added.content;
      if (other_content || (known != model_.ids.end() && known->second != added.id)) {
        reader_.refuse(
            fmt::format("the added token \"{}\" has the id {}, which the vocabulary gives otherwise",
                        shortened(added.content), added.id));
      }
      if (reader_.boolean(value, end_mark, false)) end_name_ = added.content;
      definition_.added_tokens.push_back(std::move(added));
    }
  }

  void read_decoder(const Json& file) {
    for (const Json* part : reader_.components(file, "decoder", "decoders")) {
      const std::string type = reader_.type_of(*part);
      const bool characters = definition_.form == TextForm::characters;
      if (characters && type == "Strip") {
        const Json* start = reader_.find(*part, "start");
        const Json* stop = reader_.find(*part, "stop");
        const bool known = start != nullptr && stop != nullptr && (*start == 0 || *start == 1) && *stop == 0;
        if (!known || reader_.string(*part, "content") != " ") {
          reader_.unsupported(fmt::format("the decoder {}", shortened(part->dump())));
        }
        definition_.strip_first_space = *start == 1;
      } else if (characters && type == "Metaspace") {
        definition_.strip_first_space = read_prepend_scheme(*part) != SpacePrefix::none;
      } else if (characters ? !(type == "ByteFallback" || type == "Fuse" ||
                                (type == "Replace" && is_replace(*part, space_mark, " ")))
                            : type != "ByteLevel") {
        reader_.unsupported(fmt::format("the decoder {}", shortened(part->dump())));
      }
    }
  }

  // The tokens of words. One that is special, and neither a unit nor of a merge, is left to the added tokens:
  // no word becomes it.
  void set_tokens() {
    std::vector<bool> merged(model_.tokens.size());
    for (const TokenMerge& merge : model_.merges) {
      for (const int32_t id : {merge.left, merge.right, merge.result}) merged[static_cast<size_t>(id)] = true;
    }
    std::unordered_map<int32_t, const AddedToken*> added_tokens;
    for (const AddedToken& added : definition_.added_tokens) added_tokens.emplace(added.id, &added);
    for (size_t id = 0; id < model_.tokens.size(); ++id) {
      std::string& token = model_.tokens[id];
      const bool unit = !token.empty() && character_at(token, 0).length == token.size();
      const auto added = added_tokens.find(static_cast<int32_t>(id));
      if (added != added_tokens.end() && added->second->special && !merged[id] && !unit) {
        token.clear();
      } else if (definition_.form == TextForm::bytes && !token.empty()) {
        const std::optional<std::string> bytes = from_byte_alphabet(token);
        if (!bytes && (added == added_tokens.end() || merged[id])) {
          reader_.refuse(
              fmt::format("the token \"{}\" has characters that stand for no byte", shortened(token)));
        }
        token = bytes.value_or("");
      }
    }
    definition_.tokens = std::move(model_.tokens);
    definition_.merges = std::move(model_.merges);
  }

  // Encoding adds no token; a template only says which one begins a text.
  void read_post_processor(const Json& file) {
    for (const Json* part : reader_.components(file, "post_processor", "processors")) {
      const std::string type = reader_.type_of(*part);
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing")
        reader_.unsupported(fmt::format("the post-processor {}", shortened(type)));
      const Json* single = reader_.find(*part, "single");
      if (single == nullptr || !single->is_array())
        reader_.refuse("TemplateProcessing should have a list \"single\"");
      if (single->empty() || !single->front().is_object() || !single->front().contains("SpecialToken"))
        continue;
      const std::string name = reader_.string(single->front()["SpecialToken"], "id");
      if (single->size() > 1 && (*single)[1].is_object() && (*single)[1].contains("Sequence"))
        beginning_name_ = name;
    }
  }

  std::optional<int32_t> special_id(const std::string& name, const char* what) const {
    const AddedToken* added = find_added(name);
    if (added == nullptr || !added->special) {
      reader_.refuse(fmt::format("the {} of text is said to be \"{}\", which is no special token of it", what,
                                 shortened(name)));
    }
    return added->id;
  }

  void set_roles(const TokenizerRoles& roles) {
    if (!roles.beginning_of_text.empty()) beginning_name_ = roles.beginning_of_text;
    if (!roles.end_of_text.empty()) end_name_ = roles.end_of_text;
    for (const char* name : usual_end_names) {
      const AddedToken* added = find_added(name);
      if (end_name_.empty() && added != nullptr && added->special) end_name_ = name;
    }
    if (!beginning_name_.empty()) definition_.beginning_of_text = special_id(beginning_name_, "beginning");
    if (!end_name_.empty()) definition_.end_of_text = special_id(end_name_, "end");
  }

  static constexpr const char* end_mark = "end_of_text";  // ours, in an added token; others pass over it

  const Reader& reader_;
  TokenizerDefinition definition_;
  Model model_;
  bool marks_spaces_ = false;  // by the normalizer
  std::string beginning_name_, end_name_;
};

}  // namespace

TokenizerRoles read_tokenizer_config(std::string_view json, const std::string& path) {
  const Reader reader(path);
  const Json file = reader.parse(json);
  const auto name = [&](const char* field) -> std::string {
    const Json* value = reader.find(file, field);
    if (value == nullptr) return {};
    return value->is_object() ? reader.string(*value, "content") : reader.string(file, field);
  };
  return {name("bos_token"), name("eos_token")};
}

TokenizerDefinition read_tokenizer_json(std::string_view json, const std::string& path,
                                        const TokenizerRoles& roles) {
  const Reader reader(path);
  return DefinitionReader(reader).read(reader.parse(json), roles);
}

TokenizerDefinition read_vocabulary_and_merges(std::string_view vocabulary_json,
                                               const std::string& vocabulary_path,
                                               std::string_view merges_text, const std::string& merges_path,
                                               const TokenizerRoles& roles) {
  const Reader vocabulary_reader(vocabulary_path), merges_reader(merges_path);
  Model model;
  model.read_vocabulary(vocabulary_reader, vocabulary_reader.parse(vocabulary_json));
  for (size_t begin = 0; begin < merges_text.size();) {
    const size_t end = std::min(merges_text.find('\n', begin), merges_text.size());
    std::string line(merges_text.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    if (!line.empty() && !line.starts_with("#version")) model.add_merge(merges_reader, line);
  }
  return DefinitionReader(vocabulary_reader).read_pair(std::move(model), roles);
}

}  // namespace athanor
