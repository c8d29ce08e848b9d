#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "athanor/program/program.h"

namespace athanor {

namespace {

// "1,234,567"
std::string grouped(int64_t number) {
  std::string text = fmt::format("{}", number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string flops_text(double flops) {
  static constexpr const char* units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  size_t unit = 0;
  while (flops >= 1000 && unit + 1 < std::size(units)) {
    flops /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}", flops, units[unit]);
}

Cost cost_of(const Template& block) {
  Cost total;
  for (const Operation& operation : block.graph.operations) {
    const Cost cost = athanor::cost_of(block.graph, operation);
    total.flops += cost.flops;
    total.bytes += cost.bytes;
  }
  return total;
}

// "scratch+128", with what is not obvious: rows that stand apart, chunks that move.
std::string slot_text(const Template& block, const Slot& slot, const Shape* shape) {
  if (slot.base < 0) return "no storage";
  std::string text = fmt::format("@{}+{}", block.bases.at(static_cast<size_t>(slot.base)).name, slot.offset);
  if (shape != nullptr && shape->rank() >= 2 && slot.token_stride != shape->elements_per_token()) {
    text += fmt::format(" stride {}", slot.token_stride);
  }
  if (slot.chunk_bytes != 0) text += fmt::format(" chunk {}", slot.chunk_bytes);
  return text;
}

// "3", "0-2", or "-" for none.
std::string range_text(int32_t first, int32_t last) {
  if (first < 0) return "-";
  return first == last ? fmt::format("{}", first)
                       : fmt::format("{}-{}", std::min(first, last), std::max(first, last));
}

// Calls of one template whose layers follow each other.
struct Run {
  int32_t first_call = 0, calls = 0;
  TemplateId template_id = -1;
  int32_t first_layer = -1, last_layer = -1;
  int32_t micro_batch = -1;
  int32_t adds = 0, contributions = 0;  // of operations that accumulate, in each call
  std::vector<int32_t> waits;           // relative to the call
  bool same_but_micro_batch(const Run& other) const {
    return calls == other.calls && template_id == other.template_id && first_layer == other.first_layer &&
           last_layer == other.last_layer && adds == other.adds && waits == other.waits;
  }
};

class CallsPrinter {
 public:
  explicit CallsPrinter(const StepProgram& program) : program_(program) {}

  std::string print() {
    const Cost cost = athanor::cost_of(program_);
    text_ = fmt::format("program {}: {} micro-batches of {} x {} tokens, {} calls of {} templates, {}\n",
                        name_of(program_.kind), program_.micro_batches, program_.micro_batch,
                        program_.sequence_length, program_.calls.size(), program_.templates.size(),
                        flops_text(cost.flops));
    print_templates();
    find_runs();
    text_ += "calls\n";
    for (size_t i = 0; i < runs_.size();) i = print_group(i);
    return std::move(text_);
  }

 private:
  void print_templates() {
    std::vector<int64_t> calls(program_.templates.size(), 0);
    for (const Call& call : program_.calls) ++calls.at(static_cast<size_t>(call.template_id));
    text_ += "templates\n";
    for (size_t i = 0; i < program_.templates.size(); ++i) {
      const Template& block = program_.templates[i];
      const Cost cost = cost_of(block);
      text_ += fmt::format("  {:28} {:3} calls of {:3} instructions, {:>12}, {:>16} bytes\n", block.name,
                           calls[i], block.instructions.size(), flops_text(cost.flops),
                           grouped(static_cast<int64_t>(cost.bytes)));
    }
  }

  void find_runs() {
    for (size_t c = 0; c < program_.calls.size(); ++c) {
      const Call& call = program_.calls[c];
      Run run{.first_call = static_cast<int32_t>(c),
              .calls = 1,
              .template_id = call.template_id,
              .first_layer = call.layer,
              .last_layer = call.layer,
              .micro_batch = call.micro_batch,
              .waits = {}};
      const auto& operations = program_.templates.at(static_cast<size_t>(call.template_id)).graph.operations;
      for (size_t i = 0; i < operations.size(); ++i) {
        if (!row_of(operations[i].kind).accumulates) continue;
        ++run.contributions;
        run.adds += i < call.accumulate.size() && call.accumulate[i] ? 1 : 0;
      }
      for (const int32_t wait : call.waits) run.waits.push_back(wait - static_cast<int32_t>(c));
      if (!runs_.empty() && extends(runs_.back(), run)) {
        runs_.back().last_layer = run.last_layer;
        ++runs_.back().calls;
      } else {
        runs_.push_back(std::move(run));
      }
    }
  }

  static bool extends(const Run& run, const Run& next) {
    const int32_t step = next.first_layer - run.last_layer;
    const bool same_direction = run.calls == 1 || (run.last_layer > run.first_layer) == (step > 0);
    return run.template_id == next.template_id && run.micro_batch == next.micro_batch &&
           run.adds == next.adds && run.first_layer >= 0 && (step == 1 || step == -1) && same_direction &&
           run.waits.empty() && next.waits.empty();
  }

  // How often the `period` runs at `at` repeat with the micro-batch rising by one.
  int32_t repeats(size_t at, size_t period) const {
    int32_t count = 1;
    for (;; ++count) {
      const size_t next = at + static_cast<size_t>(count) * period;
      if (next + period > runs_.size()) return count;
      for (size_t i = 0; i < period; ++i) {
        const Run &first = runs_[at + i], &later = runs_[next + i];
        if (first.micro_batch < 0 || later.micro_batch != first.micro_batch + count ||
            !first.same_but_micro_batch(later)) {
          return count;
        }
      }
    }
  }

  // Prints the runs at `at`, the same work of several micro-batches once. Returns where to go on.
  size_t print_group(size_t at) {
    size_t best_period = 1;
    int32_t best = 1;
    const int32_t micro_batch = runs_[at].micro_batch;
    for (size_t period = 1; micro_batch >= 0 && at + 2 * period <= runs_.size(); ++period) {
      if (runs_[at + period - 1].micro_batch != micro_batch) break;
      const int32_t count = repeats(at, period);
      if (count > 1) {
        best = count;
        best_period = period;
        break;
      }
    }
    if (best > 1 && best_period > 1) {
      text_ += fmt::format("  micro-batches {}, each\n", range_text(micro_batch, micro_batch + best - 1));
    }
    for (size_t i = 0; i < best_period; ++i) print_run(runs_[at + i], best, best_period > 1 && best > 1);
    return at + static_cast<size_t>(best) * best_period;
  }

  void print_run(const Run& run, int32_t micro_batches, bool in_group) {
    const Template& block = program_.templates.at(static_cast<size_t>(run.template_id));
    const int32_t calls = in_group ? run.calls : run.calls * micro_batches;
    std::string line = fmt::format("{}{:>9}  {:28}", in_group ? "    " : "  ",
                                   range_text(run.first_call, run.first_call + calls - 1), block.name);
    // Layers in the order in which they run.
    if (run.first_layer >= 0) {
      line += run.first_layer == run.last_layer
                  ? fmt::format("  layer {}", run.first_layer)
                  : fmt::format("  layers {}..{}", run.first_layer, run.last_layer);
    }
    if (run.micro_batch >= 0 && !in_group) {
      line += micro_batches == 1
                  ? fmt::format("  micro-batch {}", run.micro_batch)
                  : fmt::format("  micro-batches {}",
                                range_text(run.micro_batch, run.micro_batch + micro_batches - 1));
    }
    if (run.contributions > 0) {
      line += run.adds == 0                   ? "  overwrites"
              : run.adds == run.contributions ? "  adds"
                                              : fmt::format("  adds {} of {}", run.adds, run.contributions);
    }
    const StreamKind stream = block.instructions.front().stream;
    if (stream != StreamKind::compute && !block.is_mixed()) line += fmt::format("  on {}", name_of(stream));
    if (!run.waits.empty()) {
      line += "  waits for";
      for (const int32_t wait : run.waits) {
        const int32_t first = run.first_call + wait;
        line += " " + range_text(first, first + calls - 1);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text_ += line + "\n";
  }

  const StepProgram& program_;
  std::vector<Run> runs_;
  std::string text_;
};

// The name with its numbers as '*': buffers of one kind.
std::string family(const std::string& name) {
  std::string result;
  for (const char c : name) {
    if (c < '0' || c > '9') {
      result += c;
    } else if (result.empty() || result.back() != '*') {
      result += '*';
    }
  }
  return result;
}

}  // namespace

std::string to_text(const Template& block) {
  const Cost cost = cost_of(block);
  std::string text =
      fmt::format("template {}: {} instructions, {}, {} bytes moved\n", block.name, block.instructions.size(),
                  flops_text(cost.flops), grouped(static_cast<int64_t>(cost.bytes)));
  for (const Base& base : block.bases) {
    text += fmt::format("  base {}: {} bytes of {}\n", base.name, grouped(base.bytes),
                        name_of(base.buffer_class));
  }
  std::map<size_t, const Instruction*> instructions;
  for (const Instruction& instruction : block.instructions) {
    instructions[static_cast<size_t>(instruction.operation)] = &instruction;
  }
  GraphNotes notes;
  notes.of_value = [&](ValueId id) {
    const auto index = static_cast<size_t>(id);
    return index < block.slots.size() ? slot_text(block, block.slots[index], &block.graph.value(id).shape)
                                      : "";
  };
  notes.of_operation = [&](size_t operation) -> std::string {
    const auto at = instructions.find(operation);
    if (at == instructions.end()) return "view";
    std::string note;
    if (at->second->stream != StreamKind::compute)
      note += fmt::format("stream {}", name_of(at->second->stream));
    if (at->second->joins) note += "joins";
    if (at->second->workspace_bytes > 0) {
      note += fmt::format("{}workspace {} {}", note.empty() ? "" : " ", at->second->workspace_bytes,
                          slot_text(block, at->second->workspace, nullptr));
    }
    return note;
  };
  return text + to_text(block.graph, notes);
}

std::string calls_text(const StepProgram& program) {
  return CallsPrinter(program).print();
}

std::string memory_text(const StepProgram& program, int64_t persistent_bytes) {
  const MemoryReport report = memory_report(program, persistent_bytes);
  std::string text =
      fmt::format("memory of program {}: {} micro-batches of {} x {} tokens\n", name_of(program.kind),
                  program.micro_batches, program.micro_batch, program.sequence_length);
  const auto line = [&](std::string_view name, int64_t bytes, const std::string& note) {
    text += fmt::format("  {:18} {:>18} bytes {:>10.1f} MiB{}\n", name, grouped(bytes),
                        static_cast<double>(bytes) / 1048576.0, note);
  };
  for (int i = 0; i < buffer_class_count; ++i) {
    const int64_t bytes = report.peak_bytes[static_cast<size_t>(i)];
    if (bytes > 0) line(name_of(static_cast<BufferClass>(i)), bytes, "");
  }
  line("persistent arena", report.persistent_bytes, "");
  std::string peak;
  if (report.peak_call >= 0) {
    const Call& call = program.calls[static_cast<size_t>(report.peak_call)];
    peak = fmt::format("  peak in call {} ({}{}{})", report.peak_call,
                       program.templates.at(static_cast<size_t>(call.template_id)).name,
                       call.layer >= 0 ? fmt::format(", layer {}", call.layer) : "",
                       call.micro_batch >= 0 ? fmt::format(", micro-batch {}", call.micro_batch) : "");
  }
  line("transient arena", report.transient_bytes, peak);
  line("total", report.total_bytes(), "");

  // Buffers of one kind and size on one line, in the order of their first.
  struct Group {
    std::string name, first;
    BufferClass buffer_class;
    int64_t bytes, count;
  };
  std::vector<Group> groups;
  std::map<std::pair<std::string, int64_t>, size_t> group_of;
  for (const Buffer& buffer : program.buffers) {
    const auto [at, fresh] = group_of.try_emplace({family(buffer.name), buffer.bytes}, groups.size());
    if (fresh) groups.push_back({family(buffer.name), buffer.name, buffer.buffer_class, buffer.bytes, 0});
    ++groups[at->second].count;
  }
  text += "buffers\n";
  for (const Group& group : groups) {
    text += fmt::format("  {:28} {:>5} x {:>18} bytes  {}\n", group.count == 1 ? group.first : group.name,
                        group.count, grouped(group.bytes), name_of(group.buffer_class));
  }
  return text;
}

}  // namespace athanor
