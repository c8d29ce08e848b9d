#include "athanor/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr std::string_view version_key = "athanor.checkpoint", version = "1";
constexpr std::string_view step_key = "athanor.step";
constexpr std::string_view state_prefix = "athanor.state.";
constexpr std::string_view file_prefix = "step_", file_suffix = ".safetensors";
constexpr std::string_view pointer_name = "latest";
constexpr int64_t stretch_bytes = int64_t{1} << 20;  // read at once

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::string name_of_step(int64_t step) {
  return fmt::format("{}{:08}{}", file_prefix, step, file_suffix);
}

// The step of a file name, if it is exactly the name of that step.
std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(file_prefix) || !name.ends_with(file_suffix)) return std::nullopt;
  if (name.size() <= file_prefix.size() + file_suffix.size()) return std::nullopt;
  const auto digits = name.substr(file_prefix.size(), name.size() - file_prefix.size() - file_suffix.size());
  const auto step = parse_number(digits);
  if (!step || name_of_step(*step) != name) return std::nullopt;
  return step;
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

}  // namespace

bool KeyDifferences::empty() const {
  return missing.empty() && extra.empty() && wrong_shape.empty() && wrong_dtype.empty();
}

std::string describe(const KeyDifferences& differences) {
  std::string text;
  const auto add = [&](std::string_view title, const std::vector<std::string>& names) {
    if (names.empty()) return;
    text +=
        fmt::format("{}{} ({}): {}", text.empty() ? "" : "\n  ", title, names.size(), fmt::join(names, ", "));
  };
  add("missing in the file", differences.missing);
  add("in the file but not wanted", differences.extra);
  add("of another shape", differences.wrong_shape);
  add("of another type", differences.wrong_dtype);
  return text;
}

Checkpoint::Checkpoint(SafetensorsFile file, int64_t step, CheckpointState state)
    : file_(std::move(file)), step_(step), state_(std::move(state)) {}

namespace {

[[noreturn]] void refuse_file(const std::string& path, const std::string& reason) {
  throw_user_error(fmt::format("checkpoint '{}': {}", path, reason),
                   "give the path of a checkpoint of a run");
}

void check_version(const SafetensorsFile& file) {
  const auto& metadata = file.header().metadata;
  const auto found = metadata.find(std::string(version_key));
  if (found == metadata.end()) refuse_file(file.path(), "it is a safetensors file but no checkpoint");
  if (found->second != version) {
    refuse_file(file.path(),
                fmt::format("it has version '{}', this program reads version {}", found->second, version));
  }
}

}  // namespace

Checkpoint Checkpoint::open(FileEnvironment& files, const std::string& path) {
  auto file = SafetensorsFile::open(files, path);
  check_version(file);
  file.verify();
  return from_file(std::move(file));
}

Checkpoint Checkpoint::open_checked_elsewhere(FileEnvironment& files, const std::string& path) {
  auto file = SafetensorsFile::open(files, path);
  check_version(file);
  file.verify_header();
  return from_file(std::move(file));
}

Checkpoint Checkpoint::from_file(SafetensorsFile file) {
  const std::string path = file.path();
  const auto& metadata = file.header().metadata;
  const auto found_step = metadata.find(std::string(step_key));
  const auto step = found_step == metadata.end() ? std::nullopt : parse_number(found_step->second);
  if (!step) refuse_file(path, "it does not say its step");
  if (const auto named = step_of_name(last_part(path)); named && named != step)
    refuse_file(path, fmt::format("it is of step {}, which is not the one in its name", *step));
  CheckpointState state;
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(state_prefix)) state.emplace(key.substr(state_prefix.size()), value);
  }
  return {std::move(file), *step, std::move(state)};
}

KeyDifferences Checkpoint::compare(std::span<const TensorTarget> targets) const {
  KeyDifferences differences;
  std::set<std::string_view> wanted;
  for (const auto& target : targets) {
    ATHANOR_ASSERT(wanted.insert(target.name).second, "two targets have the name '{}'", target.name);
    const SafetensorsEntry* entry = file_.find(target.name);
    if (entry == nullptr) {
      differences.missing.push_back(target.name);
      continue;
    }
    if (entry->shape != target.shape) {
      differences.wrong_shape.push_back(fmt::format("{} (file {}, here {})", target.name,
                                                    shape_text(entry->shape), shape_text(target.shape)));
    }
    if (entry->dtype != target.dtype) {
      differences.wrong_dtype.push_back(fmt::format("{} (file {}, here {})", target.name, entry->dtype_name,
                                                    safetensors_name_of(target.dtype)));
    }
  }
  for (const auto& entry : tensors()) {
    if (!wanted.contains(entry.name)) differences.extra.push_back(entry.name);
  }
  return differences;
}

void Checkpoint::read_runs(const SafetensorsEntry& entry, std::vector<StoredRun> runs,
                           std::span<std::byte> out) const {
  const auto size = static_cast<int64_t>(size_of(*entry.dtype));
  const auto at = [&](int64_t first, int64_t length) {
    return out.subspan(static_cast<size_t>(first * size), static_cast<size_t>(length * size));
  };
  if (runs.size() == 1 && runs[0].length * size == entry.bytes()) {
    const auto whole = at(runs[0].local_first, runs[0].length);
    file_.read(entry, whole);
    file_.require_checksum(entry, crc32c(whole));
    return;
  }
  std::sort(runs.begin(), runs.end(),
            [](const StoredRun& a, const StoredRun& b) { return a.global_first < b.global_first; });
  // Runs near each other are read at once: a column of a matrix has one in every row.
  std::vector<std::byte> stretch;
  for (size_t begin = 0; begin < runs.size();) {
    const int64_t first = runs[begin].global_first;
    int64_t last = first + runs[begin].length;
    size_t end = begin + 1;
    while (end < runs.size() && (runs[end].global_first + runs[end].length - first) * size <= stretch_bytes) {
      last = runs[end].global_first + runs[end].length;
      ++end;
    }
    if (end == begin + 1) {
      file_.read_part(entry, first * size, at(runs[begin].local_first, runs[begin].length));
    } else {
      stretch.resize(static_cast<size_t>((last - first) * size));
      file_.read_part(entry, first * size, stretch);
      for (size_t i = begin; i < end; ++i) {
        const auto from = stretch.begin() + (runs[i].global_first - first) * size;
        std::copy(from, from + runs[i].length * size, at(runs[i].local_first, runs[i].length).begin());
      }
    }
    begin = end;
  }
}

KeyDifferences Checkpoint::load(std::span<const TensorTarget> targets, LoadMode mode) const {
  KeyDifferences differences = compare(targets);
  if (mode == LoadMode::strict && !differences.empty()) {
    throw_user_error(
        fmt::format("checkpoint '{}' does not fit this run:\n  {}", path(), describe(differences)),
        "resume with the configuration the checkpoint was made with; nothing was loaded");
  }
  for (const auto& target : targets) {
    const SafetensorsEntry* entry = file_.find(target.name);
    if (entry == nullptr || entry->shape != target.shape || entry->dtype != target.dtype) continue;
    if (target.runs) {
      read_runs(*entry, *target.runs, target.bytes);
      continue;
    }
    file_.read(*entry, target.bytes);
    // open() has checked the file; this guards against a device that gives other bytes the second time.
    file_.require_checksum(*entry, crc32c(target.bytes));
  }
  return differences;
}

CheckpointFolder::CheckpointFolder(FileEnvironment& files, std::string folder, CheckpointOptions options)
    : files_(files), folder_(std::move(folder)), options_(options) {
  if (options.keep_last < 1) {
    throw_user_error(fmt::format("{} checkpoints are to be kept", options.keep_last), "keep at least 1");
  }
}

std::string CheckpointFolder::path_of(int64_t step) const {
  return join_path(folder_, name_of_step(step));
}

std::vector<int64_t> CheckpointFolder::steps() {
  std::vector<int64_t> found;
  if (!files_.exists(folder_)) return found;
  for (const auto& name : files_.list(folder_)) {
    if (const auto step = step_of_name(name)) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::string> CheckpointFolder::pointer() {
  const std::string path = join_path(folder_, pointer_name);
  if (!files_.exists(path)) return std::nullopt;
  std::string text = read_file(files_, path, 4096);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

SaveReport CheckpointFolder::save(int64_t step, std::span<const TensorBytes> tensors,
                                  const CheckpointState& state) {
  std::vector<TensorProducer> producers;
  for (const TensorBytes& tensor : tensors) producers.push_back(producer_of(tensor));
  return save_produced(step, producers, state);
}

SaveReport CheckpointFolder::save_produced(int64_t step, std::span<const TensorProducer> tensors,
                                           const CheckpointState& state) {
  ATHANOR_ASSERT(step >= 0);
  SaveReport report{.path = path_of(step), .bytes = 0, .removed = {}, .notes = {}};
  files_.make_directories(folder_);
  remove_unfinished(report);
  set_aside_if_damaged(step, report);
  SafetensorsMetadata metadata;
  metadata.emplace(version_key, version);
  metadata.emplace(step_key, fmt::format("{}", step));
  for (const auto& [name, text] : state) metadata.emplace(fmt::format("{}{}", state_prefix, name), text);
  report.bytes = stream_safetensors(files_, report.path, tensors, metadata, RenameMode::keep_existing);
  write_file_atomically(files_, join_path(folder_, pointer_name), name_of_step(step) + "\n");
  remove_old(step, report);
  return report;
}

void CheckpointFolder::remove_unfinished(SaveReport& report) {
  for (const auto& name : files_.list(folder_)) {
    const bool ours = name.starts_with(file_prefix) || name.starts_with(pointer_name);
    if (!ours || !is_temporary_name(name)) continue;
    files_.remove(join_path(folder_, name));
    report.removed.push_back(join_path(folder_, name));
  }
}

void CheckpointFolder::set_aside_if_damaged(int64_t step, SaveReport& report) {
  const std::string path = path_of(step);
  if (!files_.exists(path)) return;
  std::string reason;
  try {
    Checkpoint::open(files_, path);
  } catch (const Error& error) {
    reason = error.message();
  }
  if (reason.empty()) {
    throw_user_error(
        fmt::format("there is a checkpoint of step {} already: '{}'; it is not written over", step, path),
        "resume from the latest checkpoint, or begin the run in another folder");
  }
  std::string aside = path + ".damaged";
  for (int number = 2; files_.exists(aside); ++number) aside = fmt::format("{}.damaged-{}", path, number);
  files_.rename(path, aside, RenameMode::keep_existing);
  report.notes.push_back(
      fmt::format("a damaged checkpoint of the same step is now '{}' ({})", aside, reason));
}

void CheckpointFolder::remove_old(int64_t step, SaveReport& report) {
  std::vector<int64_t> older = steps();
  std::erase_if(older, [&](int64_t other) { return other >= step; });
  const auto kept = static_cast<size_t>(options_.keep_last - 1);
  if (older.size() <= kept) return;
  older.resize(older.size() - kept);
  try {
    // Deleting cannot be undone: first see that the new one can really be read.
    Checkpoint::open(files_, report.path);
    for (const int64_t other : older) {
      files_.remove(path_of(other));
      report.removed.push_back(path_of(other));
    }
    files_.sync_directory(folder_);
  } catch (const Error& error) {
    report.notes.push_back(fmt::format("old checkpoints are kept: {}", error.message()));
  }
}

LatestCheckpoint CheckpointFolder::find_latest() {
  LatestCheckpoint latest;
  if (!files_.exists(folder_)) return latest;
  for (const auto& name : files_.list(folder_)) {
    if (is_temporary_name(name)) {
      latest.notes.push_back(
          fmt::format("'{}' is an unfinished save; it is not used", join_path(folder_, name)));
    }
  }
  std::vector<int64_t> candidates = steps();
  std::reverse(candidates.begin(), candidates.end());
  for (const int64_t step : candidates) {
    try {
      latest.checkpoint = Checkpoint::open(files_, path_of(step));
      break;
    } catch (const Error& error) {
      latest.rejected.push_back({path_of(step), error.message()});
    }
  }
  const auto pointed = pointer();
  if (!latest.checkpoint) {
    if (candidates.empty() && !pointed) return latest;
    std::string reasons;
    for (const auto& [path, reason] : latest.rejected) reasons += fmt::format("\n  {}", reason);
    if (pointed) reasons += fmt::format("\n  the pointer names '{}'", *pointed);
    throw_user_error(
        fmt::format("'{}' had checkpoints, but none is sound:{}", folder_, reasons),
        "put a sound checkpoint there, or begin a new run in another folder; nothing was changed");
  }
  const std::string chosen = name_of_step(latest.checkpoint->step());
  for (const auto& [path, reason] : latest.rejected) {
    latest.notes.push_back(fmt::format("passed over: {}; going back to '{}'", reason, chosen));
  }
  if (!pointed) {
    latest.notes.push_back(
        fmt::format("there is no pointer file '{}'; '{}' was found by its name", pointer_name, chosen));
  } else if (*pointed != chosen) {
    latest.notes.push_back(fmt::format(
        "the pointer names '{}', but '{}' is the latest that is complete and sound", *pointed, chosen));
  }
  return latest;
}

void CheckpointFolder::refuse_later_than(int64_t step) {
  std::vector<int64_t> later = steps();
  std::erase_if(later, [&](int64_t other) { return other <= step; });
  if (step == 0 && files_.exists(path_of(0))) later.insert(later.begin(), 0);
  if (later.empty()) return;
  std::string names;
  for (const int64_t other : later)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of_step(other));
  throw_user_error(fmt::format("'{}' holds checkpoints beyond step {}, where this run would begin: {}",
                               folder_, step, names),
                   "resume from the latest one, or begin the run in another folder; nothing is written over");
}

}  // namespace athanor
