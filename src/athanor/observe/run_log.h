// logs/run.log: what happened in a run and when, for whoever looks into it weeks later.
//
// Created by `train` for a run folder. Holds messages, validations, and steps that had an event; ordinary
// steps are in metrics.jsonl. Only ever grows: a run that is resumed goes on in it. Lines: base/log.h.
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/base/log.h"
#include "athanor/observe/report.h"

namespace athanor {

inline constexpr const char* run_log_name = "logs/run.log";

class RunLog final : public ReportSink {
 public:
  // `folder` is that of the run.
  RunLog(FileEnvironment& files, const std::string& folder);
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void message(MessageKind kind, const std::string& text) override;

 private:
  Log log_;
};

}  // namespace athanor
