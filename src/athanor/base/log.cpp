#include "athanor/base/log.h"

#include <fmt/core.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <span>
#include <utility>

namespace athanor {
namespace {

class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_->append(std::as_bytes(std::span(line.data(), line.size())));
  }
  void flush_() override {}  // appending has written it

 private:
  const std::unique_ptr<WritableFile> file_;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

std::string harmless(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '\n') {
      result += "\n    ";
    } else if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

struct Log::Implementation {
  spdlog::logger logger;
};

Log::Log(FileEnvironment& files, const std::string& path)
    : implementation_(std::make_unique<Implementation>(
          spdlog::logger("", std::make_shared<FileSink>(files.create(path, {.mode = CreateMode::append}))))) {
  spdlog::logger& logger = implementation_->logger;
  logger.set_formatter(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%eZ %l %v",
                                                                   spdlog::pattern_time_type::utc));
  logger.set_error_handler([](const std::string&) {});  // a line that cannot be written is dropped
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view text) {
  implementation_->logger.log(spdlog_level(level), spdlog::string_view_t(harmless(text)));
}

}  // namespace athanor
