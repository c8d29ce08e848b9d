#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/json_depth.h"
#include "athanor/base/plural.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/inference.h"
#include "athanor/cli/inference_ranks.h"
#include "athanor/comm/shared_memory.h"
#include "athanor/observe/format.h"
#include "athanor/train/generate.h"
#include "athanor/train/interrupt.h"
#include "athanor/train/stop_text.h"

namespace athanor {
namespace {

constexpr int64_t largest_input = int64_t{1} << 30;  // bytes of prompts

std::string read_standard_input() {
  std::string text;
  std::array<char, 64 << 10> piece;
  while (std::cin.read(piece.data(), piece.size()) || std::cin.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(std::cin.gcount()));
    if (static_cast<int64_t>(text.size()) > largest_input)
      throw_user_error(
          fmt::format("standard input is larger than the {} bytes that prompts may have", largest_input),
          "divide the prompts among several calls");
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Ranks are in the terminal's background, where reading from it stops a process: what is typed is read here
// and left to them in memory.
void take_over_terminal() {
  const std::string text = read_standard_input();
  const Descriptor memory(memfd_create("athanor-prompts", MFD_CLOEXEC));
  if (!memory.is_open() ||
      write(memory.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(memory.number(), 0, SEEK_SET) != 0 || dup2(memory.number(), STDIN_FILENO) < 0)
    throw_user_error(fmt::format("cannot keep the prompts: {}", std::strerror(errno)),
                     "put them into a file");
}

// A JSON string, or an object with one named "prompt".
std::string prompt_in(const std::string& line, const std::string& path, size_t number) {
  // The parser would take a NUL for the end of the line.
  const bool sound = !json_is_deeper_than(line, deepest_json) && line.find('\0') == std::string::npos;
  const auto json = sound ? nlohmann::json::parse(line, nullptr, false) : nlohmann::json();
  const auto* value = &json;
  if (json.is_object() && json.contains("prompt")) value = &json["prompt"];
  if (!value->is_string()) {
    throw_user_error(fmt::format("{}: line {} holds no prompt", path, number),
                     "each line is a JSON string, or an object with \"prompt\"");
  }
  return value->get<std::string>();
}

std::vector<std::string> prompts_in_file(const std::string& path) {
  const std::string text =
      path == "-" ? read_standard_input() : read_file(system_files(), path, largest_input);
  const bool json = path.ends_with(".jsonl");
  std::vector<std::string> prompts;
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) prompts.push_back(json ? prompt_in(line, path, number + 1) : std::move(line));
  }
  if (prompts.empty()) throw_user_error(fmt::format("{} holds no prompt", path), "write one a line");
  return prompts;
}

std::vector<std::string> prompts_of(const GenerateArguments& arguments) {
  std::vector<std::string> prompts = arguments.prompts;
  if (!arguments.file.empty()) {
    const std::vector<std::string> more = prompts_in_file(arguments.file);
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  if (prompts.empty()) prompts.push_back(isatty(STDIN_FILENO) == 1 ? std::string() : read_standard_input());
  return prompts;
}

// The ids of a prompt; where it is empty, those that a text begins with.
std::vector<int32_t> encode_prompt(const Inference& inference, const std::string& prompt, bool special) {
  const Tokenizer& tokenizer = *inference.tokenizer;
  std::vector<int32_t> ids;
  if (const auto begin = tokenizer.beginning_of_text()) ids.push_back(*begin);
  tokenizer.encode(prompt, ids, {.special_tokens = special});
  if (ids.empty()) {
    const auto end = tokenizer.end_of_text();
    ids = end ? std::vector<int32_t>{*end} : tokenizer.encode("\n");
  }
  for (const int32_t id : ids) {
    if (id < inference.model.vocabulary) continue;
    throw_user_error(
        fmt::format("the prompt has token {}, the model a vocabulary of {}", id, inference.model.vocabulary),
        "the tokenizer is not that of the model; name another with --tokenizer");
  }
  return ids;
}

// What is written behind one prompt.
struct Continuation {
  IncrementalDecoder decoder;
  StopText stop;
  std::string text;  // not yet written out
  int64_t tokens = 0;
  std::string reason = "length";
  bool ended = false;
};

class Generator {
 public:
  Generator(const GenerateArguments& arguments, const Inference& inference, std::vector<std::string> prompts)
      : arguments_(arguments), inference_(inference), prompts_(std::move(prompts)) {
    for (const std::string& prompt : prompts_) {
      ids_.push_back(encode_prompt(inference, prompt, arguments.special_tokens));
      continuations_.push_back({.decoder = IncrementalDecoder(
                                    inference.tokenizer, {.special_tokens = false, .continuation = true}),
                                .stop = StopText(arguments.stops),
                                .text = {}});
    }
    streams_ = prompts_.size() == 1 && !arguments.json;
  }

  size_t prompt_count() const { return prompts_.size(); }
  int64_t longest_prompt() const {
    size_t longest = 0;
    for (const auto& ids : ids_) longest = std::max(longest, ids.size());
    return static_cast<int64_t>(longest);
  }

  // Groups of ranks with a model each divide the prompts; all ranks of a group write its texts. Rank 0 shows.
  GenerateReport run(Engine& engine, const InferenceRanks& ranks) {
    RankMessages& messages = *ranks.messages;
    shows_ = messages.is_first();
    std::vector<size_t> own;
    std::vector<std::vector<int32_t>> ids;
    for (auto prompt = static_cast<size_t>(ranks.group()); prompt < ids_.size();
         prompt += static_cast<size_t>(ranks.groups())) {
      own.push_back(prompt);
      ids.push_back(ids_[prompt]);
    }
    if (streams_) show(prompts_.front());
    GenerateReport report = generate(engine, ids,
                                     {.length = arguments_.max_tokens,
                                      .vocabulary = inference_.tokenizer->vocabulary_size(),
                                      .sampling = {.temperature = arguments_.temperature,
                                                   .top_k = arguments_.top_k,
                                                   .top_p = arguments_.top_p,
                                                   .seed = static_cast<uint64_t>(arguments_.seed)}},
                                     [&](size_t prompt, int32_t token) { return add(own[prompt], token); });
    for (const size_t prompt : own) {
      if (!continuations_[prompt].ended) end(prompt);
    }
    exchange(ranks, own);
    if (streams_ && shows_) write_output("\n");
    return of_all(report, ranks);
  }

 private:
  // Rank 0 gets what the other groups have written, of the first rank of each.
  void exchange(const InferenceRanks& ranks, const std::vector<size_t>& own) {
    RankMessages& messages = *ranks.messages;
    if (!ranks.speaks_for_group()) return;
    if (!messages.is_first()) {
      nlohmann::json texts = nlohmann::json::array();
      for (const size_t prompt : own) {
        const Continuation& one = continuations_[prompt];
        texts.push_back(
            {prompt, nlohmann::json::binary({one.text.begin(), one.text.end()}), one.tokens, one.reason});
      }
      const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(texts);
      return messages.send(0, std::as_bytes(std::span(bytes)));
    }
    for (int group = 1; group < ranks.groups(); ++group) {
      std::vector<std::byte> bytes;
      messages.receive(group * ranks.ranks_of_group(), bytes);
      for (const auto& text : nlohmann::json::from_cbor(bytes)) {
        Continuation& one = continuations_.at(text[0].get<size_t>());
        const auto& written = text[1].get_binary();
        one.text.assign(written.begin(), written.end());
        one.tokens = text[2];
        one.reason = text[3];
        one.ended = true;
      }
    }
    write_ended();
  }

  // Tokens of all groups, and the longest times.
  static GenerateReport of_all(GenerateReport report, const InferenceRanks& ranks) {
    if (ranks.groups() == 1) return report;
    std::array<double, 2> tokens{};
    if (ranks.speaks_for_group())
      tokens = {static_cast<double>(report.prompt_tokens), static_cast<double>(report.tokens)};
    ranks.messages->all_sum(tokens);
    std::array<int64_t, 2> times = {static_cast<int64_t>(1e9 * report.prompt_seconds),
                                    static_cast<int64_t>(1e9 * report.seconds)};
    ranks.messages->all_max(times);
    return {.prompt_tokens = static_cast<int64_t>(tokens[0]),
            .tokens = static_cast<int64_t>(tokens[1]),
            .prompt_seconds = seconds_of(times[0]),
            .seconds = seconds_of(times[1])};
  }

  bool add(size_t prompt, int32_t token) {
    Continuation& one = continuations_[prompt];
    ++one.tokens;
    const std::vector<int32_t>& ends = inference_.end_ids;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      one.reason = "end_of_text";
      end(prompt);
      return false;
    }
    one.text += one.stop.append(one.decoder.append(token));
    if (one.stop.ended()) {
      one.reason = "stop_text";
      end(prompt);
      return false;
    }
    if (streams_) {
      show(one.text);
      one.text.clear();
    }
    if (one.tokens == arguments_.max_tokens) end(prompt);
    return true;
  }

  // Texts are written in the order of their prompts, each as soon as it and those before it have ended.
  void end(size_t prompt) {
    Continuation& one = continuations_[prompt];
    if (!one.stop.ended()) {
      one.text += one.stop.append(one.decoder.finish());
      if (!one.stop.ended()) one.text += one.stop.finish();
    }
    one.ended = true;
    write_ended();
  }

  void write_ended() {
    for (; written_ < prompts_.size() && continuations_[written_].ended; ++written_) {
      if (shows_) write(written_);
    }
  }

  void write(size_t prompt) {
    const Continuation& one = continuations_[prompt];
    if (streams_) return show(one.text);
    if (!arguments_.json) {
      write_output(prompt == 0 ? "" : "---\n");
      show(prompts_[prompt] + one.text + "\n");
      return;
    }
    const nlohmann::ordered_json json = {
        {"index", prompt},      {"prompt", prompts_[prompt]}, {"text", one.text},
        {"tokens", one.tokens}, {"ended_by", one.reason},
    };
    write_output(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

  // Control characters could do anything to a terminal.
  void show(const std::string& text) const {
    if (text.empty() || !shows_) return;
    write_output(isatty(STDOUT_FILENO) == 1 ? printable_lines(text) : text);
  }

  const GenerateArguments& arguments_;
  const Inference& inference_;
  std::vector<std::string> prompts_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<Continuation> continuations_;
  bool streams_ = false, shows_ = true;
  size_t written_ = 0;
};

// Those of rank 0, which has the standard input.
std::vector<std::string> agreed_prompts(const GenerateArguments& arguments, RankMessages& messages) {
  nlohmann::json prompts = nlohmann::json::array();
  if (messages.is_first()) {
    for (const std::string& prompt : prompts_of(arguments))
      prompts.push_back(nlohmann::json::binary({prompt.begin(), prompt.end()}));
  }
  const std::vector<uint8_t> cbor = nlohmann::json::to_cbor(prompts);
  const auto bytes = std::as_bytes(std::span(cbor));
  std::vector<std::byte> message(bytes.begin(), bytes.end());
  messages.broadcast(message);
  std::vector<std::string> all;
  for (const auto& prompt : nlohmann::json::from_cbor(message)) {
    const auto& text = prompt.get_binary();
    all.emplace_back(text.begin(), text.end());
  }
  return all;
}

void generate_texts(const GenerateArguments& arguments, const InferenceRanks& ranks) {
  RankMessages& messages = *ranks.messages;
  Inference inference = open_inference(arguments.inference, ranks);
  require_tokenizer(inference);
  Generator generator(arguments, inference, agreed_prompts(arguments, messages));
  // No larger than the texts can get.
  int64_t context = context_limit(inference.model, inference.trained_length);
  if (arguments.context > context) {
    throw_user_error(fmt::format("--context {}: the model has {} positions", arguments.context, context),
                     "a longer text goes on behind its later half by itself");
  }
  if (arguments.context > 0) context = arguments.context;
  context = std::min(context, std::max<int64_t>(1, generator.longest_prompt()) + arguments.max_tokens);
  EngineOptions options = inference.engine_options();
  const int64_t prompts_of_group =
      (static_cast<int64_t>(generator.prompt_count()) + ranks.groups() - 1) / ranks.groups();
  options.generation = GenerationShape::of(std::min(arguments.batch, prompts_of_group), context);
  const auto engine = load_engine(inference, options, ranks);
  const GenerateReport report = generator.run(*engine, ranks);
  if (!messages.is_first()) return;
  write_message(
      fmt::format("{} token{} in {} ({}), after {} of prompt in {}\n", report.tokens, plural(report.tokens),
                  format_seconds(report.seconds),
                  format_rate(report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0),
                  report.prompt_tokens, format_seconds(report.prompt_seconds)));
}

}  // namespace

void generate_command(const GenerateArguments& arguments) {
  const ClosedPipesIgnored pipes;
  if (arguments.file == "-" && isatty(STDIN_FILENO) == 1) take_over_terminal();
  const std::optional<InferenceRanks> ranks = join_inference(arguments.inference);
  if (ranks) ranks->messages->abort_with_error([&] { generate_texts(arguments, *ranks); });
}

}  // namespace athanor
