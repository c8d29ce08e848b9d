#include "athanor/cli/near_name.h"

#include <algorithm>

namespace athanor {

int64_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table of distances between prefixes of a and of b.
  std::vector<int64_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string nearest_name(const std::string& wrong, const std::vector<std::string>& names) {
  if (wrong.size() > 100) return {};
  std::string best;
  int64_t best_distance = std::max<int64_t>(2, static_cast<int64_t>(wrong.size()) / 3) + 1;
  for (const std::string& name : names) {
    // Half a name's letters wrong is another name.
    const int64_t distance = edit_distance(wrong, name);
    if (distance < best_distance &&
        2 * distance <= static_cast<int64_t>(std::max(name.size(), wrong.size()))) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace athanor
