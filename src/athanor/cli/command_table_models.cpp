// Commands that use a model as it is, or bring it into another form.

#include <memory>

#include "athanor/cli/command_table.h"

namespace athanor {
namespace {

std::vector<Argument> inference_arguments(InferenceArguments& to) {
  return {
      {.names = "MODEL",
       .target = &to.model,
       .about = "folder of a run (its latest checkpoint), a checkpoint file, an imported folder or one in "
                "Hugging Face's form; default: the latest run in runs/"},
      {.names = "--precision",
       .target = &to.precision,
       .about = "fp32, bf16 or fp16; default: as the weights are kept, fp32 for those of runs",
       .type = "TYPE"},
      {.names = "--tokenizer",
       .target = &to.tokenizer,
       .about = "tokenizer.json or its folder, or bytes; default: the one kept with the model",
       .type = "FILE"},
      {.names = "--no-average",
       .target = &to.no_average,
       .about = "not the averaged weights, where the run has them (optimizer.average_decay)"},
      {.names = "--threads",
       .target = &to.threads,
       .about = "of each rank; 0: all cores, shared",
       .type = "N",
       .bounds = {{0, 4096}}},
      {.names = "--ranks",
       .target = &to.ranks,
       .about = "processes that share the work (--tensor)",
       .type = "N",
       .bounds = {{1, 1 << 20}}},
      {.names = "--tensor",
       .target = &to.tensor,
       .about = "ranks that share a model which is too large for one: each has a part of every layer (1)",
       .type = "N",
       .bounds = {{1, 1 << 12}}}};
}

Argument count(const char* names, int64_t& target, const char* about, double least, double most) {
  return {.names = names, .target = &target, .about = about, .type = "N", .bounds = {{least, most}}};
}

constexpr double most_tokens = 2147483648;  // of a sequence

}  // namespace

Command generate_entry() {
  const auto to = std::make_shared<GenerateArguments>();
  Command command{.name = "generate",
                  .about = "Write text with a model.",
                  .arguments = inference_arguments(to->inference),
                  .footer =
                      "One prompt's text is written as it comes; of several each with its prompt, and "
                      "--- between.\n"
                      "A sequence that has filled the context goes on behind its later half.",
                  .action = [to] { generate_command(*to); }};
  for (Argument& argument : std::vector<Argument>{
           {.names = "-p,--prompt",
            .target = &to->prompts,
            .about = "text to continue; may be repeated; without one, what standard input holds",
            .type = "TEXT",
            .may_be_empty = true},
           {.names = "--file",
            .target = &to->file,
            .about = "prompts: one a line, or JSON lines where the name ends in .jsonl (a string, or an "
                     "object with \"prompt\"); - is standard input",
            .type = "FILE"},
           count("-n,--max-tokens", to->max_tokens, "tokens to write behind each prompt (300)", 0,
                 most_tokens),
           {.names = "-t,--temperature",
            .target = &to->temperature,
            .about = "0: always the likeliest token (0.8)",
            .type = "T",
            .bounds = {{0, 1e6}}},
           count("--top-k", to->top_k, "draw among so many likeliest; 0: all (0)", 0, most_tokens),
           {.names = "--top-p",
            .target = &to->top_p,
            .about = "draw among the fewest likeliest that have this probability (1)",
            .type = "P",
            .bounds = {{1e-12, 1}}},
           {.names = "--seed",
            .target = &to->seed,
            .about = "another seed, another text (0); a prompt's text depends on no other prompt",
            .type = "N"},
           {.names = "--stop",
            .target = &to->stops,
            .about = "end before this text; may be repeated",
            .type = "TEXT",
            .may_be_empty = true},
           count("--batch", to->batch, "prompts each model works on at a time (8); changes the speed only", 1,
                 4096),
           count("--context", to->context, "longest sequence; 0: what the model allows (0)", 0, most_tokens),
           {.names = "--special-tokens",
            .target = &to->special_tokens,
            .about = "text in prompts that spells a special token becomes it"},
           {.names = "--json",
            .target = &to->json,
            .about = "a line of JSON for each prompt, in their order"}})
    command.arguments.push_back(std::move(argument));
  return command;
}

Command evaluate_entry() {
  const auto to = std::make_shared<EvaluateArguments>();
  Command command{.name = "evaluate",
                  .about = "Measure how well a model predicts texts.",
                  .arguments = inference_arguments(to->inference),
                  .footer =
                      "Every token but the first is scored once; tokens that a data file marks as not "
                      "learned are left out.\n"
                      "Bits per byte: the bytes are those of the scored tokens' text; special tokens "
                      "have none.",
                  .action = [to] { evaluate_command(*to); }};
  constexpr double most_of_data = 1125899906842624;
  for (Argument& argument : std::vector<Argument>{
           {.names = "--data",
            .target = &to->data,
            .about = "text or tokens (as data.train), or the name of a validation set of the model's run; "
                     "default: all of those",
            .type = "DATA"},
           count("--tokens", to->tokens, "only so many from the beginning; 0: all (0)", 0, most_of_data),
           count("--sequence", to->sequence,
                 "tokens of a window; 0: as trained, or 1024 at most where that is not known (0)", 0,
                 most_tokens),
           count("--stride", to->stride,
                 "tokens a window moves on by, which are those it scores; 0: its length. Smaller ones leave "
                 "more context and take longer (0)",
                 0, most_tokens),
           count("--batch", to->batch, "windows each rank works on at a time (8); changes the speed only", 1,
                 65536),
           {.names = "--shard-weights",
            .target = &to->shard_weights,
            .about = "each of --ranks keeps a part of the weights and gathers a layer when it needs it"},
           {.names = "--json", .target = &to->json, .about = "a line of JSON for each set"}})
    command.arguments.push_back(std::move(argument));
  return command;
}

Command import_entry() {
  const auto to = std::make_shared<ImportArguments>();
  return {
      .name = "import",
      .about = "Take over a model in Hugging Face's form: GPT-2, Llama, Mistral.",
      .arguments = {{.names = "FOLDER",
                     .target = &to->folder,
                     .about = "folder with config.json and safetensors files",
                     .required = true},
                    {.names = "-o,--output",
                     .target = &to->output,
                     .about = "folder to make; `generate` and train.init_from take it",
                     .type = "FOLDER",
                     .required = true}},
      .footer =
          "The weights keep their types. docs/formats/hugging_face.md says what is read and what is refused.",
      .action = [to] { import_command(*to); }};
}

Command export_entry() {
  const auto to = std::make_shared<ExportArguments>();
  return {.name = "export",
          .about = "Write a model in Hugging Face's form.",
          .arguments = {{.names = "SOURCE",
                         .target = &to->source,
                         .about = "folder of a run (its latest checkpoint), a checkpoint file, or an "
                                  "imported folder",
                         .required = true},
                        {.names = "-o,--output",
                         .target = &to->output,
                         .about = "folder to make",
                         .type = "FOLDER",
                         .required = true},
                        {.names = "--dtype",
                         .target = &to->dtype,
                         .about = "fp32, bf16, fp16 or fp64; default: as the weights are kept",
                         .type = "TYPE"},
                        {.names = "--max-shard-size",
                         .target = &to->max_shard_size,
                         .about = "size of a file of weights, as 5GB (default), 500MB, 2GiB",
                         .type = "SIZE"},
                        {.names = "--average",
                         .target = &to->average,
                         .about = "the averaged weights (optimizer.average_decay)"}},
          .action = [to] { export_command(*to); }};
}

}  // namespace athanor
