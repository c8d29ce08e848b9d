// TensorBoard event files: the run's numbers as curves in a browser (`tensorboard --logdir runs`).
//
// Created by `train` for a run folder. The format is that of TensorFlow's records: each holds its length,
// a masked CRC-32C of the length, a protobuf `Event`, and a masked CRC-32C of that; docs/formats/metrics.md
// has the fields. A resumed run begins a new file whose first records tell TensorBoard to forget what
// earlier files hold beyond the step that is resumed from.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/observe/report.h"

namespace athanor {

class TensorBoard final : public ReportSink {
 public:
  // `wall_seconds` is the time of day since the epoch. Creates a file in `folder` (which exists) that no
  // other has written to.
  TensorBoard(FileEnvironment& files, const std::string& folder, int64_t last_step,
              std::function<double()> wall_seconds);
  // Numbers that are not known are left out.
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void finish() override;

  const std::string& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::function<double()> wall_seconds_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

// A record as it stands in the file.
std::string tensorboard_record(std::string_view data);
// A protobuf Event with one scalar per pair of tag and value.
std::string tensorboard_event(double wall_seconds, int64_t step,
                              const std::vector<std::pair<std::string, double>>& scalars);

}  // namespace athanor
