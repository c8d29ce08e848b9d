// A run's checkpoints: saving, finding the latest sound one, loading. docs/formats/checkpoint.md.
//
// A checkpoint is named tensors and opaque texts of one optimizer step in one safetensors file with
// checksums. Called by train. Errors: user errors that name the file, and the tensors. Thread safety: a
// CheckpointFolder is used by one thread of one process; a Checkpoint may be read from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/ir/dtype.h"
#include "athanor/ir/part.h"

namespace athanor {

// Texts by name (UTF-8) that only their writers understand: data position, configuration, step counts.
using CheckpointState = std::map<std::string, std::string>;

// Where a tensor, or what a rank has of it, is loaded to. Everything that a checkpoint may hold must exist
// before loading.
struct TensorTarget {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;  // of the whole tensor
  std::span<std::byte> bytes;
  std::optional<std::vector<StoredRun>> runs = {};  // which elements lie in `bytes`; nothing: all, in order
};

enum class LoadMode : uint8_t {
  strict,   // any difference of names, shapes or types is an error, and nothing is changed
  relaxed,  // loads what fits, and returns the differences
};

struct KeyDifferences {
  std::vector<std::string> missing;      // wanted, not in the file
  std::vector<std::string> extra;        // in the file, not wanted
  std::vector<std::string> wrong_shape;  // "NAME (file [2,3], here [3,2])"
  std::vector<std::string> wrong_dtype;  // "NAME (file F32, here BF16)"
  bool empty() const;
};
std::string describe(const KeyDifferences& differences);  // every name

// An open checkpoint that has passed every check. Its file may be deleted meanwhile.
class Checkpoint {
 public:
  // Reads the whole file once to check it.
  static Checkpoint open(FileEnvironment& files, const std::string& path);
  // Checks its header alone: for a file that another rank has just read and checked.
  static Checkpoint open_checked_elsewhere(FileEnvironment& files, const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t step() const { return step_; }
  const CheckpointState& state() const { return state_; }
  const std::vector<SafetensorsEntry>& tensors() const { return file_.header().tensors; }
  const SafetensorsFile& file() const { return file_; }

  KeyDifferences compare(std::span<const TensorTarget> targets) const;
  // Fills the targets. In strict mode every check comes before the first byte is changed.
  KeyDifferences load(std::span<const TensorTarget> targets, LoadMode mode) const;

 private:
  Checkpoint(SafetensorsFile file, int64_t step, CheckpointState state);
  static Checkpoint from_file(SafetensorsFile file);
  void read_runs(const SafetensorsEntry& entry, std::vector<StoredRun> runs, std::span<std::byte> out) const;

  SafetensorsFile file_;
  int64_t step_;
  CheckpointState state_;
};

struct CheckpointOptions {
  int64_t keep_last = 2;  // >= 1
};

struct SaveReport {
  std::string path;
  int64_t bytes = 0;
  std::vector<std::string> removed;  // older checkpoints and unfinished saves
  std::vector<std::string> notes;    // what a person should know
};

struct RejectedCheckpoint {
  std::string path, reason;
};

struct LatestCheckpoint {
  std::optional<Checkpoint> checkpoint;      // none: a fresh run
  std::vector<RejectedCheckpoint> rejected;  // newer ones that failed their checks
  std::vector<std::string> notes;            // what a person should know: why this one
};

class CheckpointFolder {
 public:
  // `folder` need not exist.
  CheckpointFolder(FileEnvironment& files, std::string folder, CheckpointOptions options);

  // Writes a checkpoint and, when it is durable, the pointer; then deletes old ones. Every value is the one
  // at the time of the call: it returns when all is written. Refuses a step that has a sound file. On an
  // error all earlier checkpoints are as they were.
  SaveReport save(int64_t step, std::span<const TensorBytes> tensors, const CheckpointState& state);
  // The same with tensors that are made as they are written.
  SaveReport save_produced(int64_t step, std::span<const TensorProducer> tensors,
                           const CheckpointState& state);

  // The highest step whose file passes all checks. Step files without a sound one among them, or a pointer
  // to nothing, are a user error with all reasons; only a folder without any is a fresh run.
  LatestCheckpoint find_latest();

  // For a run that begins at `step` (0: anew): a user error if there are step files above it, which its
  // saves would come to meet.
  void refuse_later_than(int64_t step);

  std::vector<int64_t> steps();  // that have a file, sound or not; rising
  std::string path_of(int64_t step) const;

 private:
  void remove_unfinished(SaveReport& report);
  void set_aside_if_damaged(int64_t step, SaveReport& report);
  void remove_old(int64_t step, SaveReport& report);
  std::optional<std::string> pointer();

  FileEnvironment& files_;
  std::string folder_;
  CheckpointOptions options_;
};

}  // namespace athanor
