#include "athanor/program/template_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "athanor/base/error.h"

namespace athanor {

void throw_program_fault(const std::string& where, const std::string& problem) {
  throw Error(ErrorKind::stop_job, where + ": " + problem,
              "this is a fault of the compiler, not of the options");
}

namespace {

// Labels of bytes that hold no value of the graph's own.
constexpr ValueId from_outside = -2;
constexpr ValueId workspace_label = -3;

class TemplateCheck {
 public:
  explicit TemplateCheck(const Template& block)
      : block_(block),
        graph_(block.graph),
        memory_(block.bases.size()),
        roots_(graph_.values.size()),
        mixed_(block.is_mixed()) {}

  std::vector<Access> run() {
    verify(graph_);
    if (block_.slots.size() != graph_.values.size()) {
      fail(fmt::format("{} slots for {} values", block_.slots.size(), graph_.values.size()));
    }
    check_instructions();
    find_chunks();
    for (const ValueId id : graph_.inputs) {
      roots_[static_cast<size_t>(id)] = {from_outside};
      label(id, from_outside);
    }
    run_operations();
    operation_ = -1;
    for (const ValueId id : graph_.outputs) {
      if (!holds(id)) fail(fmt::format("{} is an output and is overwritten before the end", describe(id)));
    }
    check_streams();
    return sorted_accesses();
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    std::string where = fmt::format("template {}", block_.name);
    if (operation_ >= 0) {
      where += fmt::format(", operation {} ({})", operation_,
                           name_of(graph_.operations[static_cast<size_t>(operation_)].kind));
    }
    throw_program_fault(where, problem);
  }

  std::string describe(ValueId id) const { return fmt::format("value %{} ({})", id, graph_.value(id).name); }

  // Every operation that is not a view has one instruction, in the graph's order.
  void check_instructions() {
    size_t next = 0;
    instruction_of_.assign(graph_.operations.size(), nullptr);
    for (size_t i = 0; i < graph_.operations.size(); ++i) {
      if (row_of(graph_.operations[i].kind).is_view) continue;
      operation_ = static_cast<int32_t>(i);
      if (next == block_.instructions.size() || block_.instructions[next].operation != operation_) {
        fail("it has no instruction in its place");
      }
      instruction_of_[i] = &block_.instructions[next++];
      several_streams_ |= instruction_of_[i]->stream != block_.instructions.front().stream;
    }
    operation_ = -1;
    if (next != block_.instructions.size()) {
      fail(fmt::format("{} instructions for {} operations", block_.instructions.size(), next));
    }
  }

  // Values that hold the rows of one iteration.
  void find_chunks() {
    is_chunk_.assign(graph_.values.size(), false);
    for (const Operation& operation : graph_.operations) {
      if (operation.region < 0 || operation.kind == OperationKind::collect) continue;
      if (row_of(operation.kind).accumulates) continue;
      for (const ValueId id : operation.outputs) {
        if (id != no_value) is_chunk_[static_cast<size_t>(id)] = true;
      }
    }
  }

  void run_operations() {
    const size_t count = graph_.operations.size();
    for (size_t begin = 0; begin < count;) {
      const int32_t region = graph_.operations[begin].region;
      size_t end = begin + 1;
      while (region >= 0 && end < count && graph_.operations[end].region == region) ++end;
      const Region* loop = region >= 0 ? &graph_.regions[static_cast<size_t>(region)] : nullptr;
      const int64_t iterations = loop != nullptr ? loop->iterations() : 1;
      for (iteration_ = 0; iteration_ < iterations; ++iteration_) {
        rows_ = loop != nullptr ? std::min(loop->chunk_rows, loop->rows - iteration_ * loop->chunk_rows) : -1;
        for (size_t i = begin; i < end; ++i) run_operation(i);
      }
      iteration_ = 0;
      rows_ = -1;
      begin = end;
    }
  }

  void run_operation(size_t index) {
    operation_ = static_cast<int32_t>(index);
    const Operation& operation = graph_.operations[index];
    const OperationRow& row = row_of(operation.kind);
    if (row.is_view) {
      std::set<ValueId>& roots = roots_[static_cast<size_t>(operation.outputs[0])];
      for (const ValueId id : operation.inputs) {
        const auto& more = roots_[static_cast<size_t>(id)];
        roots.insert(more.begin(), more.end());
      }
      return;
    }
    const Instruction& instruction = *instruction_of_[index];
    ++sequence_;
    if (instruction.joins) joins_.push_back(sequence_);
    for (const ValueId id : operation.inputs) {
      if (id != no_value) read(id, instruction.stream);
    }
    const StridedRange workspace = use_workspace(instruction);
    for (const ValueId id : operation.inputs) {
      if (id != no_value && !holds(id)) fail(fmt::format("its workspace touches {}", describe(id)));
    }
    std::vector<std::set<ValueId>> input_roots;
    for (const ValueId id : operation.inputs) {
      input_roots.push_back(id == no_value ? std::set<ValueId>{} : roots_[static_cast<size_t>(id)]);
    }
    for (const ValueId id : operation.outputs) {
      if (id != no_value) write(id, row, instruction.stream);
    }
    for (const ValueId id : operation.outputs) {
      if (id != no_value && !holds(id)) fail(fmt::format("another output touches {}", describe(id)));
    }
    if (instruction.workspace_bytes > 0 &&
        foreign_piece(instruction.workspace.base, workspace, {workspace_label})) {
      fail("its workspace touches an output");
    }
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      const ValueId id = operation.inputs[i];
      if (id == no_value || holds(id, input_roots[i]) || may_overwrite(operation, row, i)) continue;
      fail(fmt::format("an output touches its input {}", describe(id)));
    }
  }

  // Whether an output that the row lets take the place of input `i` has exactly that place.
  bool may_overwrite(const Operation& operation, const OperationRow& row, size_t i) const {
    for (size_t o = 0; o < operation.outputs.size(); ++o) {
      if (operation.outputs[o] == no_value || row.in_place[o] != static_cast<int8_t>(i)) continue;
      const Slot& in = slot_of(operation.inputs[i]);
      const Slot& out = slot_of(operation.outputs[o]);
      if (in.base == out.base && in.offset == out.offset && in.token_stride == out.token_stride) return true;
    }
    return false;
  }

  const Slot& slot_of(ValueId id) const { return block_.slots[static_cast<size_t>(id)]; }

  // The bytes of a value in this iteration. In the last one a chunk may have fewer rows.
  StridedRange range_of(ValueId id) const {
    const Value& value = graph_.value(id);
    const Slot& slot = slot_of(id);
    const auto element = static_cast<int64_t>(size_of(value.dtype));
    if (value.shape.elements() == 0) return {0, 0, 0, 0};
    if (slot.base < 0 || slot.base >= static_cast<int32_t>(block_.bases.size())) {
      fail(fmt::format("{} has base {} of {}", describe(id), slot.base, block_.bases.size()));
    }
    int64_t rows = 1, width = value.shape.elements() * element, stride = width;
    if (value.shape.rank() >= 2) {
      rows = value.shape.tokens();
      width = value.shape.elements_per_token() * element;
      stride = slot.token_stride * element;
      if (rows > 1 && stride < width) fail(fmt::format("the rows of {} lie in one another", describe(id)));
      if (rows_ >= 0 && is_chunk_[static_cast<size_t>(id)]) rows = std::min(rows, rows_);
    }
    const int64_t begin = slot.offset + iteration_ * slot.chunk_bytes;
    const int64_t end = begin + (rows - 1) * stride + width;
    const Base& base = block_.bases[static_cast<size_t>(slot.base)];
    if (slot.offset < 0 || slot.chunk_bytes < 0 || end > base.bytes) {
      fail(fmt::format("{} has bytes [{}, {}) of base {}, which has {}", describe(id), begin, end, base.name,
                       base.bytes));
    }
    return {begin, width, stride, rows};
  }

  void label(ValueId id, ValueId root) {
    const StridedRange range = range_of(id);
    if (!range.empty()) memory_[static_cast<size_t>(slot_of(id).base)].assign(range, root);
  }

  // The first piece of the range that holds anything but the given labels.
  std::optional<std::pair<ByteRange, const ValueId*>> foreign_piece(int32_t base, const StridedRange& range,
                                                                    const std::set<ValueId>& roots) const {
    if (range.empty()) return std::nullopt;
    return memory_[static_cast<size_t>(base)].find(
        range, [&](const ValueId* found) { return found == nullptr || !roots.contains(*found); });
  }
  bool holds(ValueId id, const std::set<ValueId>& roots) const {
    return !foreign_piece(slot_of(id).base, range_of(id), roots);
  }
  bool holds(ValueId id) const { return holds(id, roots_[static_cast<size_t>(id)]); }

  void read(ValueId id, StreamKind stream) {
    const std::set<ValueId>& roots = roots_[static_cast<size_t>(id)];
    const StridedRange range = range_of(id);
    if (const auto piece = foreign_piece(slot_of(id).base, range, roots)) {
      fail(fmt::format("{} is read, but bytes [{}, {}) of base {} hold {}", describe(id), piece->first.begin,
                       piece->first.end, block_.bases[static_cast<size_t>(slot_of(id).base)].name,
                       text_of(piece->second)));
    }
    if (range.empty()) return;
    if (roots.contains(from_outside)) {
      add_access(AccessKind::read, stream, id, range);
    } else {
      touch(stream, slot_of(id).base, range, false);
    }
  }

  std::string text_of(const ValueId* found) const {
    if (found == nullptr) return "nothing";
    if (*found == from_outside) return "what came from outside";
    if (*found == workspace_label) return "workspace";
    return describe(*found);
  }

  StridedRange use_workspace(const Instruction& instruction) {
    if (instruction.workspace_bytes <= 0) return {0, 0, 0, 0};
    const Slot& slot = instruction.workspace;
    if (slot.base < 0 || slot.base >= static_cast<int32_t>(block_.bases.size()))
      fail("its workspace has no base");
    const Base& base = block_.bases[static_cast<size_t>(slot.base)];
    const StridedRange range{slot.offset, instruction.workspace_bytes, 0, 1};
    if (range.begin < 0 || range.begin % 64 != 0 || range.end() > base.bytes) {
      fail(fmt::format("its workspace has bytes [{}, {}) of base {}, which has {}", range.begin, range.end(),
                       base.name, base.bytes));
    }
    memory_[static_cast<size_t>(slot.base)].assign(range, workspace_label);
    add_access(AccessKind::write, instruction.stream, no_value, range, slot.base);
    return range;
  }

  void write(ValueId id, const OperationRow& row, StreamKind stream) {
    const StridedRange range = range_of(id);
    std::set<ValueId>& roots = roots_[static_cast<size_t>(id)];
    const bool adds =
        row.accumulates && (iteration_ > 0 || roots.contains(id));  // not the first contribution here
    if (adds && !holds(id)) fail(fmt::format("{} is added to, but was overwritten", describe(id)));
    roots = {id};
    if (range.empty()) return;
    label(id, id);
    const BufferClass buffer_class = block_.bases[static_cast<size_t>(slot_of(id).base)].buffer_class;
    const bool state = is_persistent(buffer_class) && buffer_class != BufferClass::gradients &&
                       buffer_class != BufferClass::scalars;
    const bool gathers =
        row.kind == OperationKind::all_gather && buffer_class == BufferClass::working_weights;
    if (state && !row.updates_outputs && !gathers) {
      fail(fmt::format("{} is written among {}", describe(id), name_of(buffer_class)));
    }
    const bool updates = row.updates_outputs && (buffer_class == BufferClass::gradients ||
                                                 buffer_class == BufferClass::unreduced_gradients);
    add_access(row.accumulates ? AccessKind::accumulate
               : updates       ? AccessKind::update
                               : AccessKind::write,
               stream, id, range);
  }

  // Reads and writes of a value are listed once per stream, contributions once per operation; of scratch,
  // which nobody outside reads, only which bytes are used.
  void add_access(AccessKind kind, StreamKind stream, ValueId id, const StridedRange& range,
                  int32_t base = -1) {
    if (base < 0) base = slot_of(id).base;
    touch(stream, base, range, kind != AccessKind::read);
    if (stream == StreamKind::communication && mixed_) stream = StreamKind::compute;
    if (kind == AccessKind::write &&
        block_.bases[static_cast<size_t>(base)].buffer_class == BufferClass::scratch) {
      scratch_written_[{stream, base}].assign(range.hull(), true);
      return;
    }
    const bool by_operation = kind == AccessKind::accumulate || kind == AccessKind::update || id == no_value;
    const Key key{kind, stream, by_operation ? operation_ : -1, id};
    auto [at, fresh] = access_of_.try_emplace(key, accesses_.size());
    if (fresh) {
      accesses_.push_back(
          {.kind = kind, .stream = stream, .operation = operation_, .base = base, .value = id, .ranges = {}});
      covered_.emplace_back();
    }
    covered_[at->second].assign(range, true);
  }

  void touch(StreamKind stream, int32_t base, const StridedRange& range, bool writes) {
    if (!several_streams_) return;
    touches_.push_back({operation_, sequence_, stream, base, range.hull(), writes});
  }

  // Collectives start after all that the compute stream had been given before them; what it is given later
  // may meet them only once it has waited. Nothing orders other streams within a template.
  void check_streams() const {
    const auto joined = [&](int64_t after, int64_t until) {
      const auto at = std::upper_bound(joins_.begin(), joins_.end(), after);
      return at != joins_.end() && *at <= until;
    };
    const bool orders_all = mixed_ && std::ranges::none_of(block_.instructions, [](const Instruction& one) {
                              return one.stream == StreamKind::copy;
                            });
    // By rising sequence.
    for (auto a = touches_.begin(); a != touches_.end(); ++a) {
      const bool before_collectives = mixed_ && a->stream == StreamKind::compute;
      if (before_collectives && orders_all) continue;
      for (auto b = a + 1; b != touches_.end(); ++b) {
        if (orders_all && joined(a->sequence, b->sequence)) break;  // so are all later ones
        if (a->stream == b->stream || a->base != b->base || !(a->writes || b->writes)) continue;
        if (a->hull.end <= b->hull.begin || b->hull.end <= a->hull.begin) continue;
        if (before_collectives && b->stream == StreamKind::communication) continue;
        if (mixed_ && b->stream == StreamKind::compute && joined(a->sequence, b->sequence)) continue;
        fail(fmt::format("operations {} and {} on different streams use the same bytes of base {}",
                         a->operation, b->operation, block_.bases[static_cast<size_t>(a->base)].name));
      }
    }
  }

  std::vector<Access> sorted_accesses() {
    for (size_t i = 0; i < accesses_.size(); ++i) {
      covered_[i].visit_all([&](const StridedRange& range) { accesses_[i].ranges.push_back(range); });
    }
    for (const auto& [at, bytes] : scratch_written_) {
      bytes.visit_all([&, stream = at.first, base = at.second](const ByteRange& range) {
        accesses_.push_back({.kind = AccessKind::write,
                             .stream = stream,
                             .base = base,
                             .ranges = {{range.begin, range.end - range.begin, 0, 1}}});
      });
    }
    std::stable_partition(accesses_.begin(), accesses_.end(),
                          [](const Access& access) { return access.kind == AccessKind::read; });
    return std::move(accesses_);
  }

  struct Touch {
    int32_t operation;
    int64_t sequence;
    StreamKind stream;
    int32_t base;
    ByteRange hull;
    bool writes;
  };
  struct Key {
    AccessKind kind;
    StreamKind stream;
    int32_t operation;
    ValueId value;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  const Template& block_;
  const Graph& graph_;
  std::vector<StridedMap<ValueId>> memory_;         // by base: the value whose bytes these are
  std::vector<std::set<ValueId>> roots_;            // by value: labels that its bytes may have
  std::vector<const Instruction*> instruction_of_;  // by operation
  std::vector<bool> is_chunk_;
  std::vector<Access> accesses_;
  std::vector<StridedMap<bool>> covered_;  // by access
  std::map<Key, size_t> access_of_;
  std::map<std::pair<StreamKind, int32_t>, IntervalMap<bool>> scratch_written_;  // by stream and base
  std::vector<Touch> touches_;
  std::vector<int64_t> joins_;  // executions that wait for all collectives before them
  int64_t sequence_ = 0;        // executions so far
  bool several_streams_ = false;
  const bool mixed_;
  int32_t operation_ = -1;
  int64_t iteration_ = 0, rows_ = -1;
};

}  // namespace

std::vector<Access> check_template(const Template& block) {
  return TemplateCheck(block).run();
}

}  // namespace athanor
