#include "athanor/observe/run_log.h"

#include "athanor/observe/terminal.h"

namespace athanor {
namespace {

std::string path_in(FileEnvironment& files, const std::string& folder) {
  files.make_directories(folder + "/logs");
  return folder + "/" + run_log_name;
}

}  // namespace

RunLog::RunLog(FileEnvironment& files, const std::string& folder) : log_(files, path_in(files, folder)) {}

void RunLog::step(const StepReport& report) {
  if (!report.is_ordinary()) log_.write(LogLevel::warning, plain_line(report, {}));
}

void RunLog::validation(const ValidationReport& report) {
  log_.write(LogLevel::info, validation_line(report, {}));
}

void RunLog::message(MessageKind kind, const std::string& text) {
  switch (kind) {
    case MessageKind::note:
      return log_.write(LogLevel::info, text);
    case MessageKind::warning:
      return log_.write(LogLevel::warning, text);
    case MessageKind::error:
      return log_.write(LogLevel::error, text);
  }
}

}  // namespace athanor
