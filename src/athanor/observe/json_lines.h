// metrics.jsonl and validation.jsonl: the run's numbers for programs, one JSON object a line.
//
// Created by `train` for a run folder. The fields are listed in docs/formats/metrics.md. Rules:
// - every line is valid JSON whatever the numbers: a number that is not known is null, one that is not
//   finite is the string "NaN", "Infinity" or "-Infinity";
// - each line reaches the file system before `step` returns, and the device at `finish`;
// - metrics.jsonl never holds a step twice: opening cuts off what lies beyond the step that is resumed
//   from, a last line torn by a crash, and lines that are not ours.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "athanor/base/file_environment.h"
#include "athanor/observe/report.h"

namespace athanor {

inline constexpr const char* metrics_file_name = "metrics.jsonl";
inline constexpr const char* validation_file_name = "validation.jsonl";

class JsonLines final : public ReportSink {
 public:
  // Opens both files in `folder` (which exists) to go on after `last_step`; 0 begins anew.
  JsonLines(FileEnvironment& files, const std::string& folder, int64_t last_step);
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void finish() override;

 private:
  std::unique_ptr<WritableFile> metrics_, validation_;
};

// The lines without '\n'.
std::string to_json(const StepReport& report);
std::string to_json(const ValidationReport& report);

// Hands what both files in `folder` hold up to `last_step` to `sink`, steps before validations of the same
// step, as far as a curve needs it: step, loss, seconds and consumed tokens; set, loss and tokens. For sinks
// that keep a history in memory, on resume, and for comparisons. Lines that cannot be read are passed over;
// returns how many. Missing files are empty.
int64_t replay_json_lines(FileEnvironment& files, const std::string& folder, int64_t last_step,
                          ReportSink& sink);

}  // namespace athanor
