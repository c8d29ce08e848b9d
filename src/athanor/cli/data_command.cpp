#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/folder_lock.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/near_name.h"
#include "athanor/data/build.h"
#include "athanor/data/inspect.h"
#include "athanor/observe/format.h"
#include "athanor/observe/progress_bar.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/train/interrupt.h"

namespace athanor {
namespace {

template <class Value>
Value choose(const std::string& flag, const std::string& name,
             const std::vector<std::pair<std::string, Value>>& choices) {
  std::vector<std::string> names;
  for (const auto& [known, value] : choices) {
    if (known == name) return value;
    names.push_back(known);
  }
  const std::string near = nearest_name(name, names);
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  throw_user_error(fmt::format("{} {}: there is no such choice", flag, printable(name)),
                   near.empty() ? "there are " + list : fmt::format("did you mean {}?", near));
}

std::vector<InputFile> find_all(FileEnvironment& files, const std::vector<std::string>& values) {
  std::vector<InputFile> inputs;
  for (const std::string& value : values) {
    auto found = find_input_files(files, value);
    inputs.insert(inputs.end(), found.begin(), found.end());
  }
  return inputs;
}

BuildOptions build_options(FileEnvironment& files, const DataBuildArguments& arguments) {
  BuildOptions options;
  options.output = arguments.output;
  options.format =
      choose<DatasetFormat>("--format", arguments.format,
                            {{"athanor", DatasetFormat::athanor}, {"megatron", DatasetFormat::megatron}});
  options.text.chat = choose<ChatTemplate>(
      "--chat-template", arguments.chat_template,
      {{"plain", ChatTemplate::plain}, {"chatml", ChatTemplate::chatml}, {"llama-3", ChatTemplate::llama3}});
  options.text.field = arguments.field;
  options.text.separator = arguments.separator;
  options.text.skip_bad = arguments.skip_bad;
  constexpr int most_threads = 4096;
  if (arguments.threads < 0 || arguments.threads > most_threads) {
    throw_user_error(fmt::format("--threads {}", arguments.threads), "give a number from 0 to 4096");
  }
  options.text.threads = arguments.threads;
  options.split = {.validation = arguments.validation_fraction,
                   .test = arguments.test_fraction,
                   .seed = static_cast<uint64_t>(arguments.split_seed)};
  options.overwrite = arguments.overwrite;
  const std::string name = options.output.substr(options.output.rfind('/') + 1);
  if (name.empty() || name == "." || name == "..") {
    throw_user_error(fmt::format("--output '{}' is no beginning of a file name", options.output),
                     "as data/books, for data/books.tokens");
  }
  options.tokenizer = open_tokenizer(files, arguments.tokenizer);
  options.inputs = find_all(files, arguments.inputs);
  options.lock = [](const std::string& folder) { return std::make_shared<const FolderLock>(folder); };
  return options;
}

std::string rate(int64_t bytes, double seconds) {
  return fmt::format("{:.1f} MB/s", static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-6));
}

}  // namespace

void data_build_command(const DataBuildArguments& arguments) {
  FileEnvironment& files = system_files();
  const BuildOptions options = build_options(files, arguments);
  const int64_t begin = monotonic_ns();
  const auto elapsed = [&] { return seconds_of(monotonic_ns() - begin); };
  const Interrupts interrupts(0, begin);
  const auto bar = make_progress_bar(stderr);
  // With something in it, as what a build goes on from, the folder stays.
  struct RemoveIfEmpty {
    ~RemoveIfEmpty() {
      std::error_code kept;
      std::filesystem::remove(folder, kept);
    }
    std::string folder;
  } remove{work_folder(options)};
  const BuildReport report = build_dataset(files, options, [&](const BuildProgress& now) {
    if (const std::string reason = interrupts.stop_reason(); !reason.empty()) {
      throw_user_error(fmt::format("stopped: {}", reason), "the same command goes on with what is done");
    }
    if (!bar->is_due()) return;
    if (now.written_tokens > 0) {
      bar->update({.stage = "writing", .done = now.written_tokens, .total = now.tokens});
      return;
    }
    bar->update({.stage = "encoding",
                 .done = now.bytes - now.resumed_bytes,
                 .total = now.total_bytes - now.resumed_bytes,
                 .detail = fmt::format("{}, {} tokens", rate(now.bytes - now.resumed_bytes, elapsed()),
                                       format_exact(now.tokens))});
  });
  bar->finish();
  std::string text;
  if (report.resumed_bytes > 0) {
    text += fmt::format("went on behind {} of a build that had been stopped\n",
                        format_counted(report.resumed_bytes, "byte"));
  }
  text += fmt::format("{} of text: {}, {}{}; {}\n", format_counted(report.text_bytes, "byte"),
                      format_counted(report.documents, "document"), format_counted(report.tokens, "token"),
                      report.unlearned_tokens > 0
                          ? fmt::format(" ({} of them not learned)", format_exact(report.unlearned_tokens))
                          : "",
                      rate(report.text_bytes - report.resumed_bytes, elapsed()));
  for (const BuildReport::Part& part : report.parts) {
    text += fmt::format("{}: {}, {}\n", part.path, format_counted(part.documents, "document"),
                        format_counted(part.tokens, "token"));
  }
  text += report.tokenizer_path + "\n";
  if (report.bad_line_count > 0) {
    text +=
        fmt::format("left out {} that could not be read:\n", format_counted(report.bad_line_count, "line"));
    for (const std::string& line : report.bad_lines) text += "  " + printable(line) + "\n";
    if (report.bad_line_count > static_cast<int64_t>(report.bad_lines.size())) text += "  ...\n";
  }
  write_output(text);
}

void data_inspect_command(const DataInspectArguments& arguments) {
  FileEnvironment& files = system_files();
  const auto tokenizer = arguments.tokenizer.empty() ? nullptr : open_tokenizer(files, arguments.tokenizer);
  bool damaged = false;
  for (const InputFile& input : find_all(files, arguments.inputs)) {
    const Inspection inspection = inspect(files, input, tokenizer, arguments.documents);
    damaged = damaged || !inspection.damage.empty();
    write_output(printable_lines(describe(inspection)));
  }
  if (damaged) throw_user_error("a file is damaged", "prepare it again from the text");
}

}  // namespace athanor
