#include "athanor/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      break;
  }
  return spdlog::level::off;
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

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    case LogLevel::off:
      return "off";
  }
  return "unknown";
}

struct Log::Implementation {
  spdlog::logger logger;
};

Log::Log(LogOptions options) : level_(options.level) {
  std::vector<spdlog::sink_ptr> sinks;
  if (options.to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (!options.file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file));
    } catch (const spdlog::spdlog_ex& failure) {
      throw_user_error(fmt::format("cannot open the log file '{}': {}", options.file, failure.what()),
                       "check that its folder exists and may be written to");
    }
  }
  implementation_ =
      std::make_unique<Implementation>(spdlog::logger(options.name, sinks.begin(), sinks.end()));
  spdlog::logger& logger = implementation_->logger;
  const char* pattern =
      options.name.empty() ? "%Y-%m-%dT%H:%M:%S.%eZ %l %v" : "%Y-%m-%dT%H:%M:%S.%eZ %l %n: %v";
  logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
  logger.set_level(spdlog::level::trace);               // `wants` has decided
  logger.flush_on(spdlog::level::trace);                // the last lines before a crash are those that matter
  logger.set_error_handler([](const std::string&) {});  // a line that cannot be written is dropped
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view text) {
  if (level >= LogLevel::off) return;
  implementation_->logger.log(spdlog_level(level), spdlog::string_view_t(harmless(text)));
}

}  // namespace athanor
