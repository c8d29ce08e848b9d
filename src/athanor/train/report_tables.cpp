#include "athanor/train/report_tables.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "athanor/model/model.h"
#include "athanor/observe/format.h"

namespace athanor {

std::string parameter_table(const ProgramSet& set, const ModelConfig& config) {
  std::string text = fmt::format("{:<40} {:>16} {:<10} {:>6} {:>6} {:>14}\n", "parameter", "shape", "role",
                                 "decay", "rate", "elements");
  for (size_t t = 0; t < set.tables.size(); ++t) {
    const bool block = t > 0 && t + 1 < set.tables.size();
    if (block && t > 1) continue;  // all blocks are alike
    const int64_t copies = block ? config.layers : 1;
    for (const BucketMember& member : set.tables[t].members) {
      std::string name = member.name;
      if (block) name.replace(0, std::string("block.0").size(), "block.*");
      text += fmt::format("{:<40} {:>16} {:<10} {:>6} {:>6} {:>14}\n", name, to_text(member.shape),
                          name_of(member.role), member.weight_decay, member.learning_rate_factor,
                          copies * member.length());
    }
  }
  const ParameterCount count = parameter_count(config);
  return text +
         fmt::format("{} parameters, {} of them counted for MFU (no position and untied input embeddings)\n",
                     count.total, count.counted());
}

std::string memory_summary(const ProgramSet& set) {
  const StepProgram* largest = &set.programs.front();
  for (const StepProgram& program : set.programs) {
    if (program.transient_bytes > largest->transient_bytes) largest = &program;
  }
  const MemoryReport report = memory_report(*largest, set.persistent_bytes);
  std::string text;
  for (int i = 0; i < buffer_class_count; ++i) {
    const int64_t bytes = report.peak_bytes[static_cast<size_t>(i)];
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<BufferClass>(i)),
                        format_bytes(static_cast<double>(bytes)));
  }
  return fmt::format("memory: {} planned ({})", format_bytes(static_cast<double>(planned_bytes(set))), text);
}

}  // namespace athanor
