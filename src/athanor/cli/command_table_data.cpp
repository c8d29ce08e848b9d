// Commands of tokenizers and of files of tokens.

#include <memory>

#include "athanor/cli/command_table.h"

namespace athanor {
namespace {

Command tokenizer_train_entry() {
  const auto to = std::make_shared<TokenizerTrainArguments>();
  return {
      .name = "train",
      .about = "Learn a tokenizer from text.",
      .arguments =
          {{.names = "TEXT",
            .target = &to->inputs,
            .about = "texts, JSON lines (.jsonl), folders and patterns of them; -: standard input",
            .required = true},
           {.names = "--vocabulary",
            .target = &to->vocabulary,
            .about = "tokens in all: 256 bytes, learned ones, special ones",
            .type = "N",
            .required = true},
           {.names = "-o,--output",
            .target = &to->output,
            .about = "the tokenizer.json to write",
            .type = "FILE",
            .required = true},
           {.names = "--pattern",
            .target = &to->pattern,
            .about = "how text is cut into words: gpt2 (default) or llama3",
            .type = "NAME"},
           {.names = "--special",
            .target = &to->special_tokens,
            .about = "special token; may be repeated, the first ends a text; default: <|endoftext|>",
            .type = "TEXT"},
           {.names = "--separator",
            .target = &to->separator,
            .about = "a line of a text that equals it ends a document; default: a file is one document",
            .type = "LINE",
            .may_be_empty = true},
           {.names = "--field",
            .target = &to->field,
            .about = "member of JSON lines that holds the text; default: text",
            .type = "NAME"},
           {.names = "--memory",
            .target = &to->memory,
            .about = "limit in bytes, also as 500M or 4G: words that do not fit are counted on disk, beside "
                     "the output; default: half of what is free",
            .type = "BYTES"},
           {.names = "--threads",
            .target = &to->threads,
            .about = "default: all cores; the result is the same",
            .type = "N"}},
      .action = [to] { tokenizer_train_command(*to); }};
}

// One of the commands that use a tokenizer.
Command tokenizer_use_entry(const char* name, const char* about, void (*run)(const TokenizerArguments&),
                            const std::function<std::vector<Argument>(TokenizerArguments&)>& more) {
  const auto to = std::make_shared<TokenizerArguments>();
  Command command{.name = name,
                  .about = about,
                  .arguments = {{.names = "TOKENIZER",
                                 .target = &to->tokenizer,
                                 .about = "\"bytes\", a tokenizer.json, a vocab.json with merges.txt beside "
                                          "it, or a folder of either",
                                 .required = true}},
                  .action = [to, run] { run(*to); }};
  for (Argument& argument : more(*to)) command.arguments.push_back(std::move(argument));
  return command;
}

Argument input(TokenizerArguments& to) {
  return {.names = "-i,--input", .target = &to.input, .about = "default: standard input", .type = "FILE"};
}

Argument output(TokenizerArguments& to) {
  return {.names = "-o,--output", .target = &to.output, .about = "default: standard output", .type = "FILE"};
}

Argument text(TokenizerArguments& to, const char* about) {
  return {.names = "--text", .target = &to.text, .about = about, .type = "TEXT", .may_be_empty = true};
}

Argument special(TokenizerArguments& to, const char* about) {
  return {.names = "--special", .target = &to.special_tokens, .about = about};
}

constexpr const char* special_in_text =
    "text that spells a special token becomes it; default: it is text like any other";

Command data_build_entry() {
  const auto to = std::make_shared<DataBuildArguments>();
  return {
      .name = "build",
      .about = "Turn texts and JSON lines into a dataset.",
      .arguments =
          {{.names = "INPUT",
            .target = &to->inputs,
            .about = "files, folders (their files sorted by path) or quoted patterns",
            .required = true},
           {.names = "-o,--output",
            .target = &to->output,
            .about = "beginning of the names of the files that are written",
            .type = "PREFIX",
            .required = true},
           {.names = "--tokenizer",
            .target = &to->tokenizer,
            .about = "bytes (default), a tokenizer.json, a vocab.json with merges.txt, or a folder of either",
            .type = "TOKENIZER"},
           {.names = "--format",
            .target = &to->format,
            .about = "athanor (default) or megatron",
            .type = "NAME"},
           {.names = "--field",
            .target = &to->field,
            .about = "member of a JSON line that holds its text (default: text)",
            .type = "NAME"},
           {.names = "--chat-template",
            .target = &to->chat_template,
            .about = "plain (default), chatml or llama-3: how JSON lines with \"messages\", or \"prompt\" "
                     "and \"answer\", become text; only what the assistant says is learned",
            .type = "NAME"},
           {.names = "--separator",
            .target = &to->separator,
            .about = "line of a text that ends a document",
            .type = "LINE",
            .may_be_empty = true},
           {.names = "--threads", .target = &to->threads, .about = "0: all cores (default)", .type = "N"},
           {.names = "--validation-fraction",
            .target = &to->validation_fraction,
            .about = "share of the documents, drawn by number",
            .type = "X"},
           {.names = "--test-fraction",
            .target = &to->test_fraction,
            .about = "share of the documents",
            .type = "X"},
           {.names = "--split-seed",
            .target = &to->split_seed,
            .about = "another seed, another split (default: 1)",
            .type = "N"},
           {.names = "--skip-bad",
            .target = &to->skip_bad,
            .about = "leave out JSON lines that cannot be read, and count them"},
           {.names = "--overwrite", .target = &to->overwrite, .about = "replace files of before"}},
      .footer = "A build that was stopped goes on when it is called again, with the same result.",
      .action = [to] { data_build_command(*to); }};
}

Command data_inspect_entry() {
  const auto to = std::make_shared<DataInspectArguments>();
  return {.name = "inspect",
          .about = "Print what files of tokens hold; reads all of them.",
          .arguments = {{.names = "FILE",
                         .target = &to->inputs,
                         .about = "token files of any kind, folders or patterns",
                         .required = true},
                        {.names = "--tokenizer",
                         .target = &to->tokenizer,
                         .about = "shows the first documents as text",
                         .type = "TOKENIZER"},
                        {.names = "--documents",
                         .target = &to->documents,
                         .about = "so many of them (default: 3)",
                         .type = "N",
                         .bounds = {{0, 1 << 20}}}},
          .action = [to] { data_inspect_command(*to); }};
}

}  // namespace

Command tokenizer_entry() {
  Command command{.name = "tokenizer", .about = "Turn text into tokens and back; learn how."};
  command.commands.push_back(
      tokenizer_use_entry("encode", "Print the ids of a text, and on standard error how well they fit it.",
                          tokenizer_encode_command, [](TokenizerArguments& to) {
                            return std::vector{input(to), output(to), text(to, "instead of an input"),
                                               special(to, special_in_text)};
                          }));
  command.commands.push_back(tokenizer_use_entry(
      "decode", "Print the text of ids.", tokenizer_decode_command, [](TokenizerArguments& to) {
        return std::vector{input(to), output(to),
                           special(to, "show special tokens; default: leave them out")};
      }));
  command.commands.push_back(tokenizer_use_entry(
      "show", "Print what a tokenizer is.", tokenizer_show_command, [](TokenizerArguments& to) {
        return std::vector{text(to, "also show the tokens of this text"), special(to, special_in_text)};
      }));
  command.commands.push_back(tokenizer_train_entry());
  return command;
}

Command data_entry() {
  Command command{.name = "data", .about = "Make files of tokens, and look into them."};
  command.commands.push_back(data_build_entry());
  command.commands.push_back(data_inspect_entry());
  return command;
}

}  // namespace athanor
