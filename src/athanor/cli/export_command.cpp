#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/model_source.h"
#include "athanor/cli/output_folder.h"
#include "athanor/cli/stoppable_weights.h"
#include "athanor/hugging_face/exchange.h"
#include "athanor/observe/format.h"
#include "athanor/tokenizer/tokenizer_files.h"

namespace athanor {
namespace {

std::optional<DType> dtype_of_argument(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto dtype = parse_dtype(text);
  if (!dtype || !is_convertible(*dtype)) {
    throw_user_error(fmt::format("--dtype {}: there is no such type of weights", text),
                     "there are fp32, bf16, fp16 and fp64");
  }
  return dtype;
}

// "5GB", "500 MB", "2GiB", "1000000".
int64_t bytes_of_argument(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  std::string unit(rest, end);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  double factor = unit.empty() || unit == "B" ? 1 : 0;
  for (const auto& [name, value] : {std::pair{"kB", 1e3},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}}) {
    if (unit == name) factor = value;
  }
  const double bytes = number * factor;
  if (failure != std::errc{} || !(bytes >= 1) || bytes > 1e18) {
    throw_user_error(fmt::format("--max-shard-size {}: no size", text.substr(0, 100)),
                     "write it as 5GB, 500MB or 2GiB");
  }
  return static_cast<int64_t>(bytes);
}

// The source's tokenizer as the text of a tokenizer.json, and the ids it begins and ends texts with, where
// the source does not say others.
std::string take_tokenizer(FileEnvironment& files, ModelSource& source, std::string& notes) {
  try {
    const auto tokenizer = tokenizer_of(files, source);
    if (!tokenizer) {
      notes += "note: there is no tokenizer to go with it\n";
      return {};
    }
    if (source.tokens == SpecialTokenIds{}) {
      if (const auto id = tokenizer->beginning_of_text()) source.tokens.begin = {*id};
      if (const auto id = tokenizer->end_of_text()) source.tokens.end = {*id};
    }
    return write_tokenizer_json(tokenizer->definition());
  } catch (const Error& error) {
    notes += fmt::format("note: the tokenizer is left out: {}\n", error.message());
    return {};
  }
}

}  // namespace

void export_command(const ExportArguments& arguments) {
  FileEnvironment& files = system_files();
  ExportOptions options{.dtype = dtype_of_argument(arguments.dtype),
                        .max_shard_bytes = bytes_of_argument(arguments.max_shard_size),
                        .weight_prefix = arguments.average ? "average." : "",
                        .tokens = {},
                        .other_files = {}};
  OutputFolder output(files, arguments.output);
  ModelSource source = open_model_source(files, arguments.source);
  std::string text;
  for (const std::string& note : source.notes) text += fmt::format("note: {}\n", note);
  const std::string tokenizer = take_tokenizer(files, source, text);
  if (!tokenizer.empty()) options.other_files["tokenizer.json"] = tokenizer;
  options.tokens = source.tokens;
  const ShardReport report =
      export_weights(files, StoppableWeights(*source.weights), source.model, arguments.output, options);
  text +=
      fmt::format("{} model from {}: {} in {}\n", hugging_face_type_of(source.model), source.weights->path(),
                  format_bytes(static_cast<double>(report.bytes)), arguments.output);
  output.keep();
  write_output(printable_lines(text));
}

}  // namespace athanor
