#include "athanor/observe/line_file.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace athanor {

namespace {
constexpr int64_t piece_bytes = 1 << 20;
constexpr size_t write_bytes = 1 << 20;
}  // namespace

void for_each_line(FileEnvironment& files, const std::string& path,
                   const std::function<void(std::string_view line, bool complete)>& visit) {
  if (!files.exists(path)) return;
  const std::unique_ptr<ReadableFile> file = files.open(path);
  const int64_t size = file->size();
  std::string pending;  // the line that goes on in the next piece
  bool too_long = false;
  std::string piece;
  for (int64_t offset = 0; offset < size; offset += piece_bytes) {
    piece.resize(static_cast<size_t>(std::min(piece_bytes, size - offset)));
    file->read_at(offset, std::as_writable_bytes(std::span(piece)));
    std::string_view rest = piece;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      const size_t room = static_cast<size_t>(max_line_bytes) - pending.size();
      too_long = too_long || part.size() > room;
      if (end == std::string_view::npos) {
        pending += part.substr(0, room);
        break;
      }
      if (pending.empty() && !too_long) {
        visit(part, true);
      } else {
        pending += part.substr(0, room);
        visit(pending, !too_long);
      }
      pending.clear();
      too_long = false;
      rest.remove_prefix(end + 1);
    }
  }
  if (!pending.empty()) visit(pending, false);
}

int64_t keep_lines(FileEnvironment& files, const std::string& path,
                   const std::function<bool(std::string_view line)>& keep) {
  int64_t removed = 0;
  // Which lines go is decided once, since `keep` may look at the lines it has seen before.
  std::vector<bool> kept;
  for_each_line(files, path, [&](std::string_view line, bool complete) {
    kept.push_back(complete && keep(line));
    if (!kept.back()) ++removed;
  });
  if (removed == 0) return 0;
  write_file_atomically(files, path, [&](WritableFile& out) {
    std::string buffer;
    size_t index = 0;
    for_each_line(files, path, [&](std::string_view line, bool) {
      if (index < kept.size() && kept[index++]) {
        buffer += line;
        buffer += '\n';
        if (buffer.size() >= write_bytes) {
          out.append(std::as_bytes(std::span(buffer)));
          buffer.clear();
        }
      }
    });
    if (!buffer.empty()) out.append(std::as_bytes(std::span(buffer)));
  });
  return removed;
}

}  // namespace athanor
