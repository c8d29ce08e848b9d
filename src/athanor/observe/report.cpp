#include "athanor/observe/report.h"

#include <exception>

namespace athanor {

void ReportSinks::finish() {
  std::exception_ptr first;
  for (auto& sink : sinks_) {
    try {
      sink->finish();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace athanor
