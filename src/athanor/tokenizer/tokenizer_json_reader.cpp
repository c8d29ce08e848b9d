#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "athanor/tokenizer/byte_level.h"
#include "athanor/tokenizer/json_fields.h"
#include "athanor/tokenizer/split_patterns.h"
#include "athanor/tokenizer/token_lists.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

// Special tokens that end a text, by the names that published tokenizers have for them; the first that is
// there.
constexpr const char* usual_end_names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"};

AddedToken read_added_token(const JsonFields& fields, const Json& value) {
  AddedToken added;
  const Json* id = fields.find(value, "id");
  added.content = fields.string(value, "content");
  const std::string name = fmt::format("the added token \"{}\"", shortened(added.content));
  if (id == nullptr) fields.refuse(name + " has no id");
  added.id = fields.id(*id, added.content);
  if (fields.boolean(value, "single_word", false))
    fields.unsupported(fmt::format("\"single_word\" of {}", name));
  added.left_strip = fields.boolean(value, "lstrip", false);
  added.right_strip = fields.boolean(value, "rstrip", false);
  added.special = fields.boolean(value, "special", false);
  added.normalized = fields.boolean(value, "normalized", !added.special);
  return added;
}

class DefinitionReader {
 public:
  explicit DefinitionReader(const JsonFields& fields) : fields_(fields) {}

  TokenizerDefinition read(const Json& file, const TokenizerRoles& roles) {
    const std::string version = fields_.string(file, "version", "1.0");
    if (version != "1.0") fields_.unsupported(fmt::format("version \"{}\"", shortened(version)));
    for (const char* name : {"truncation", "padding"}) {
      if (fields_.find(file, name) != nullptr)
        fields_.unsupported(fmt::format("\"{}\" other than null", name));
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

  TokenizerDefinition read_pair(TokenLists model, const std::string& merges_path,
                                const TokenizerRoles& roles) {
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
    require_all_merges(merges_path);
    set_tokens();
    set_roles(roles);
    return std::move(definition_);
  }

 private:
  // A file that was cut short would give other ids without a word. Names in brackets are special tokens,
  // which no merge makes.
  void require_all_merges(const std::string& merges_path) const {
    std::vector<bool> made(model_.tokens.size());
    for (const TokenMerge& merge : model_.merges) made[static_cast<size_t>(merge.result)] = true;
    int64_t missing = 0;
    const std::string* first = nullptr;
    for (size_t id = 0; id < model_.tokens.size(); ++id) {
      const std::string& token = model_.tokens[id];
      if (made[id] || token.empty() || character_at(token, 0).length == token.size()) continue;
      if ((token.starts_with('<') && token.ends_with('>')) ||
          (token.starts_with('[') && token.ends_with(']')))
        continue;
      if (missing++ == 0) first = &token;
    }
    if (missing == 0) return;
    fields_.refuse(
        fmt::format("{} of its {} tokens, such as \"{}\", are made by no merge of {}, which has {}", missing,
                    model_.ids.size(), shortened(*first), merges_path, model_.merges.size()),
        "merges.txt is cut short, or of another vocabulary");
  }

  void read_normalizer(const Json& file) {
    for (const Json* part : fields_.components(file, "normalizer", "normalizers")) {
      const std::string type = fields_.type_of(*part);
      if (type == "Prepend" && fields_.string(*part, "prepend") == space_mark && !marks_spaces_ &&
          definition_.prefix == SpacePrefix::none) {
        definition_.prefix = SpacePrefix::always;
      } else if (type == "Replace" && is_replace(*part, " ", space_mark) && !marks_spaces_) {
        marks_spaces_ = true;
      } else {
        fields_.unsupported(fmt::format("the normalizer {}", shortened(part->dump())));
      }
    }
    if (definition_.prefix != SpacePrefix::none && !marks_spaces_) {
      fields_.unsupported("the normalizer Prepend without Replace");
    }
    definition_.added_in_marked_text = marks_spaces_;
  }

  bool is_replace(const Json& part, std::string_view from, std::string_view to) const {
    const Json* pattern = fields_.find(part, "pattern");
    return pattern != nullptr && pattern->is_object() && pattern->size() == 1 &&
           pattern->contains("String") && (*pattern)["String"] == from &&
           fields_.string(part, "content") == to;
  }

  void read_pre_tokenizer(const Json& file) {
    bool has_byte_level = false, has_split = false, has_metaspace = false;
    for (const Json* part : fields_.components(file, "pre_tokenizer", "pretokenizers")) {
      const std::string type = fields_.type_of(*part);
      if (has_byte_level || has_metaspace)
        fields_.unsupported(fmt::format("the pre-tokenizer {} after another", type));
      if (type == "ByteLevel") {
        has_byte_level = true;
        const bool add_prefix_space = fields_.boolean(*part, "add_prefix_space", true);
        const bool use_regex = fields_.boolean(*part, "use_regex", true);
        if (has_split && (add_prefix_space || use_regex)) {
          fields_.unsupported("ByteLevel with add_prefix_space or use_regex after Split");
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
        fields_.unsupported(fmt::format("the pre-tokenizer {}", shortened(part->dump())));
      }
    }
    if (has_split && !has_byte_level) fields_.unsupported("the pre-tokenizer Split without ByteLevel");
    if (has_byte_level == (marks_spaces_ || has_metaspace)) {
      fields_.unsupported(has_byte_level
                              ? "ByteLevel together with a normalizer"
                              : "a pre-tokenizer or normalizer that is neither ByteLevel nor marks spaces");
    }
    definition_.form = has_byte_level ? TextForm::bytes : TextForm::characters;
    if (!has_byte_level) definition_.pattern = SplitPattern::none;
  }

  SplitPattern read_split(const Json& part) const {
    const Json* pattern = fields_.find(part, "pattern");
    if (pattern == nullptr || !pattern->is_object() || !pattern->contains("Regex") ||
        !(*pattern)["Regex"].is_string()) {
      fields_.unsupported(fmt::format("the pre-tokenizer {}", shortened(part.dump())));
    }
    const std::string regex = (*pattern)["Regex"].get<std::string>();
    const std::string behavior = fields_.string(part, "behavior");
    const bool invert = fields_.boolean(part, "invert", false);
    // The known patterns match all of a text, so that nothing lies between the matches.
    if (!(behavior == "Isolated" || (behavior == "Removed" && invert))) {
      fields_.unsupported(fmt::format("Split with the behavior {}", shortened(behavior)));
    }
    const std::optional<SplitPattern> known = find_split_pattern(regex);
    if (!known) {
      fields_.refuse(fmt::format("the splitting pattern {} is not supported", shortened(regex)),
                     "those of GPT-2 and Llama 3 are");
    }
    return *known;
  }

  void read_metaspace(const Json& part) {
    if (fields_.string(part, "replacement", "\xe2\x96\x81") != space_mark) {
      fields_.unsupported("Metaspace with another mark than U+2581");
    }
    definition_.word_at_each_space = fields_.boolean(part, "split", true);
    definition_.prefix = read_prepend_scheme(part);
  }

  SpacePrefix read_prepend_scheme(const Json& part) const {
    const bool old = fields_.boolean(part, "add_prefix_space", true);
    const std::string scheme = fields_.string(part, "prepend_scheme", old ? "always" : "never");
    if (scheme == "always") return SpacePrefix::unless_space;
    if (scheme == "first") return SpacePrefix::first_unless_space;
    if (scheme == "never") return SpacePrefix::none;
    fields_.unsupported(fmt::format("the prepend_scheme {}", shortened(scheme)));
  }

  void read_model(const Json& file) {
    const Json* model = fields_.find(file, "model");
    if (model == nullptr) fields_.refuse("has no \"model\"", "is it a tokenizer.json?");
    const std::string type = fields_.string(*model, "type", "BPE");
    if (type != "BPE") fields_.unsupported(fmt::format("a model of the type {}", shortened(type)));
    const Json* dropout = fields_.find(*model, "dropout");
    if (dropout != nullptr && *dropout != 0.0) fields_.unsupported("\"dropout\"");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!fields_.string(*model, name, "").empty()) fields_.unsupported(fmt::format("\"{}\"", name));
    }
    // Every byte has a token, so that the token for what is unknown is never used.
    fields_.string(*model, "unk_token", "");
    fields_.boolean(*model, "fuse_unk", false);
    if (!fields_.boolean(*model, "byte_fallback", false) && definition_.form == TextForm::characters) {
      fields_.refuse("a model of characters without \"byte_fallback\" is not supported",
                     "it would lose the characters that it has no token for");
    }
    definition_.whole_words_first = fields_.boolean(*model, "ignore_merges", false);
    const Json* vocabulary = fields_.find(*model, "vocab");
    const Json* merges = fields_.find(*model, "merges");
    if (vocabulary == nullptr || merges == nullptr || !merges->is_array()) {
      fields_.refuse("\"model\" should have \"vocab\" and a list \"merges\"");
    }
    model_.read_vocabulary(fields_, *vocabulary);
    for (const Json& merge : *merges) {
      if (merge.is_string()) {
        model_.add_merge(fields_, merge.get<std::string>());
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        model_.add_merge(fields_, merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        fields_.refuse(fmt::format("merge {} should be a string or a pair of strings", model_.merges.size()));
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
    const Json* list = fields_.find(file, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) fields_.refuse("\"added_tokens\" should be a list");
    for (const Json& value : *list) {
      AddedToken added = read_added_token(fields_, value);
      const auto known = model_.ids.find(added.content);
      const auto place = static_cast<size_t>(added.id);
      const bool other_content = place < model_.tokens.size() && !model_.tokens[place].empty() &&
                                 model_.tokens[place] != added.content;
      if (other_content || (known != model_.ids.end() && known->second != added.id)) {
        fields_.refuse(
            fmt::format("the added token \"{}\" has the id {}, which the vocabulary gives otherwise",
                        shortened(added.content), added.id));
      }
      if (fields_.boolean(value, end_mark, false)) end_name_ = added.content;
      definition_.added_tokens.push_back(std::move(added));
    }
  }

  void read_decoder(const Json& file) {
    for (const Json* part : fields_.components(file, "decoder", "decoders")) {
      const std::string type = fields_.type_of(*part);
      const bool characters = definition_.form == TextForm::characters;
      if (characters && type == "Strip") {
        const Json* start = fields_.find(*part, "start");
        const Json* stop = fields_.find(*part, "stop");
        const bool known = start != nullptr && stop != nullptr && (*start == 0 || *start == 1) && *stop == 0;
        if (!known || fields_.string(*part, "content") != " ") {
          fields_.unsupported(fmt::format("the decoder {}", shortened(part->dump())));
        }
        definition_.strip_first_space = *start == 1;
      } else if (characters && type == "Metaspace") {
        definition_.strip_first_space = read_prepend_scheme(*part) != SpacePrefix::none;
      } else if (characters ? !(type == "ByteFallback" || type == "Fuse" ||
                                (type == "Replace" && is_replace(*part, space_mark, " ")))
                            : type != "ByteLevel") {
        fields_.unsupported(fmt::format("the decoder {}", shortened(part->dump())));
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
          fields_.refuse(
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
    for (const Json* part : fields_.components(file, "post_processor", "processors")) {
      const std::string type = fields_.type_of(*part);
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing")
        fields_.unsupported(fmt::format("the post-processor {}", shortened(type)));
      const Json* single = fields_.find(*part, "single");
      if (single == nullptr || !single->is_array())
        fields_.refuse("TemplateProcessing should have a list \"single\"");
      if (single->empty() || !single->front().is_object() || !single->front().contains("SpecialToken"))
        continue;
      const std::string name = fields_.string(single->front()["SpecialToken"], "id");
      if (single->size() > 1 && (*single)[1].is_object() && (*single)[1].contains("Sequence"))
        beginning_name_ = name;
    }
  }

  std::optional<int32_t> special_id(const std::string& name, const char* what) const {
    const AddedToken* added = find_added(name);
    if (added == nullptr || !added->special) {
      fields_.refuse(fmt::format("the {} of text is said to be \"{}\", which is no special token of it", what,
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

  const JsonFields& fields_;
  TokenizerDefinition definition_;
  TokenLists model_;
  bool marks_spaces_ = false;  // by the normalizer
  std::string beginning_name_, end_name_;
};

}  // namespace

TokenizerRoles read_tokenizer_config(std::string_view json, const std::string& path) {
  const JsonFields fields(path);
  const Json file = fields.parse(json);
  const auto name = [&](const char* field) -> std::string {
    const Json* value = fields.find(file, field);
    if (value == nullptr) return {};
    return value->is_object() ? fields.string(*value, "content") : fields.string(file, field);
  };
  return {name("bos_token"), name("eos_token")};
}

TokenizerDefinition read_tokenizer_json(std::string_view json, const std::string& path,
                                        const TokenizerRoles& roles) {
  const JsonFields fields(path);
  return DefinitionReader(fields).read(fields.parse(json), roles);
}

TokenizerDefinition read_vocabulary_json(std::string_view json, const std::string& path,
                                         const std::function<MergesText()>& merges,
                                         const TokenizerRoles& roles) {
  const JsonFields fields(path);
  const Json file = fields.parse(json);
  if (file.is_object() && file.contains("model") && file["model"].is_object())
    return DefinitionReader(fields).read(file, roles);
  const MergesText pair = merges();
  const JsonFields merges_fields(pair.path);
  TokenLists model;
  model.read_vocabulary(fields, file);
  for (size_t begin = 0; begin < pair.text.size();) {
    const size_t end = std::min(pair.text.find('\n', begin), pair.text.size());
    std::string line = pair.text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    if (!line.empty() && !line.starts_with("#version")) model.add_merge(merges_fields, line);
  }
  return DefinitionReader(fields).read_pair(std::move(model), pair.path, roles);
}

}  // namespace athanor
