#include "athanor/cluster/launch_report.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace athanor {
namespace {

constexpr std::string_view folder_word = "folder ", error_word = "error\n";
constexpr size_t most_bytes = 32 << 10;  // fits into the pipe: nobody is kept waiting

bool tell(const Environment& environment, std::string text) {
  const auto variable = environment(report_variable);
  if (!variable) return false;
  int descriptor = -1;
  const auto [end, error] =
      std::from_chars(variable->data(), variable->data() + variable->size(), descriptor);
  if (error != std::errc{} || end != variable->data() + variable->size() || descriptor <= 2) return false;
  pollfd ready{descriptor, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  text.resize(std::min(text.size(), most_bytes));
  return write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

void report_folder(const Environment& environment, const std::string& folder) {
  if (folder.find('\n') != std::string::npos) return;
  tell(environment, std::string(folder_word) + folder + '\n');
}

bool report_error(const Environment& environment, std::string_view message) {
  return tell(environment, std::string(error_word) + std::string(message));
}

LaunchReport read_report(std::string_view text) {
  LaunchReport report;
  while (!text.empty()) {
    if (text.starts_with(error_word)) {
      report.error = text.substr(error_word.size());
      break;
    }
    const size_t end = std::min(text.find('\n'), text.size());
    if (text.starts_with(folder_word) && end < text.size())
      report.folder = text.substr(folder_word.size(), end - folder_word.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return report;
}

}  // namespace athanor
