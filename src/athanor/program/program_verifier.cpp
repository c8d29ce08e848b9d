#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "athanor/ir/layer_name.h"
#include "athanor/program/program.h"
#include "athanor/program/template_check.h"

namespace athanor {

namespace {

constexpr size_t streams = stream_kind_count;

// By stream: the last call on it that is known to have ended. -1: none.
using Clock = std::array<int32_t, streams>;
constexpr Clock no_call = {-1, -1, -1};

Clock joined(Clock a, const Clock& b) {
  for (size_t s = 0; s < streams; ++s) a[s] = std::max(a[s], b[s]);
  return a;
}

// Which calls used some bytes last, by stream.
struct Use {
  Clock written = no_call, read = no_call;
};

// Whether the step begins with these bytes in order: weights and optimizer state.
bool is_state(BufferClass buffer_class) {
  return is_persistent(buffer_class) && buffer_class != BufferClass::gradients &&
         buffer_class != BufferClass::scalars;
}

class ProgramVerifier {
 public:
  explicit ProgramVerifier(const StepProgram& program)
      : program_(program), written_(program.buffers.size()), done_(program.calls.size(), no_call) {}

  void run() {
    for (const Template& block : program_.templates) accesses_.push_back(check_template(block));
    check_buffers();
    check_lives();
    for (call_ = 0; call_ < static_cast<int32_t>(program_.calls.size()); ++call_) run_call();
    call_ = -1;
    check_contributions();
  }

 private:
  const Call& call() const { return program_.calls[static_cast<size_t>(call_)]; }
  const Template& block() const { return program_.templates[static_cast<size_t>(call().template_id)]; }
  const Buffer& buffer_of(const Access& access) const {
    return program_.buffers[static_cast<size_t>(call().buffers[static_cast<size_t>(access.base)])];
  }

  [[noreturn]] void fail(const std::string& problem, int32_t operation = -1) const {
    std::string where = fmt::format("program {}", name_of(program_.kind));
    if (call_ >= 0) {
      where += fmt::format(", call {}", call_);
      const auto id = static_cast<size_t>(call().template_id);
      if (id < program_.templates.size()) {
        where += fmt::format(" ({}", block().name);
        if (call().layer >= 0) where += fmt::format(", layer {}", call().layer);
        if (call().micro_batch >= 0) where += fmt::format(", micro-batch {}", call().micro_batch);
        where += ")";
      }
    }
    if (operation >= 0) {
      where += fmt::format(", operation {} ({})", operation,
                           name_of(block().graph.operations[static_cast<size_t>(operation)].kind));
    }
    throw_program_fault(where, problem);
  }

  std::string describe(const Access& access) const {
    if (access.value == no_value) return "scratch";
    return fmt::format("value %{} ({})", access.value,
                       fill_layer(block().graph.value(access.value).name, call().layer));
  }

  // ---- the memory plan

  void check_buffers() const {
    bool transient = false;
    IntervalMap<const Buffer*> persistent;
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.bytes < 0 || buffer.offset < 0 || buffer.offset % 64 != 0) {
        fail(fmt::format("buffer {} has {} bytes at {}", buffer.name, buffer.bytes, buffer.offset));
      }
      if (!is_persistent(buffer.buffer_class)) {
        transient = true;
        if (buffer.offset + buffer.bytes > program_.transient_bytes) {
          fail(fmt::format("buffer {} ends at {} in an arena of {}", buffer.name,
                           buffer.offset + buffer.bytes, program_.transient_bytes));
        }
        continue;
      }
      if (transient) fail(fmt::format("persistent buffer {} stands behind a transient one", buffer.name));
      const ByteRange range{buffer.offset, buffer.offset + buffer.bytes};
      persistent.visit(range, [&](ByteRange, const Buffer* const* other) {
        if (other != nullptr) fail(fmt::format("buffers {} and {} share bytes", (*other)->name, buffer.name));
      });
      persistent.assign(range, &buffer);
    }
  }

  // Sweeps over the calls: what begins to live must find its bytes free.
  void check_lives() const {
    const auto calls = static_cast<int32_t>(program_.calls.size());
    std::vector<std::vector<const Buffer*>> begins(program_.calls.size()), ends(program_.calls.size());
    for (const Buffer& buffer : program_.buffers) {
      if (is_persistent(buffer.buffer_class) || buffer.bytes == 0) continue;
      if (buffer.first_call < 0 || buffer.first_call > buffer.last_call || buffer.last_call >= calls) {
        fail(fmt::format("buffer {} lives in calls {} to {} of {}", buffer.name, buffer.first_call,
                         buffer.last_call, calls));
      }
      begins[static_cast<size_t>(buffer.first_call)].push_back(&buffer);
      ends[static_cast<size_t>(buffer.last_call)].push_back(&buffer);
    }
    std::map<int64_t, const Buffer*> live;  // by offset
    const auto check_neighbours = [&](const Buffer& before, const Buffer& after) {
      if (before.offset + before.bytes <= after.offset) return;
      fail(fmt::format("buffers {} and {} share bytes while both are live", before.name, after.name));
    };
    for (size_t c = 0; c < begins.size(); ++c) {
      for (const Buffer* buffer : begins[c]) {
        const auto [at, fresh] = live.emplace(buffer->offset, buffer);
        if (!fresh) check_neighbours(*at->second, *buffer);
        if (at != live.begin()) check_neighbours(*std::prev(at)->second, *buffer);
        if (std::next(at) != live.end()) check_neighbours(*buffer, *std::next(at)->second);
      }
      for (const Buffer* buffer : ends[c]) live.erase(buffer->offset);
    }
  }

  // ---- calls

  void run_call() {
    check_binding();
    start_streams();
    check_update();
    for (const Access& access : accesses_[static_cast<size_t>(call().template_id)]) {
      const auto base = static_cast<size_t>(access.base);
      const auto id = static_cast<size_t>(call().buffers[base]);
      for (const StridedRange& range : access.ranges) {
        const StridedRange bytes = range.moved(call().base_offsets[base]);
        if (access.kind == AccessKind::read) read(access, written_[id], bytes);
        if (access.kind == AccessKind::accumulate) accumulate(access, written_[id], bytes);
        if (access.kind == AccessKind::write) write(access, written_[id], bytes);
        if (access.kind == AccessKind::update) read(access, written_[id], bytes);
      }
      order(access);
    }
    for (const Operation& operation : block().graph.operations) follow_sums(operation);
    end_streams();
  }

  // Contributions of ranks that have seen other tokens must be summed before anything uses a gradient.
  void follow_sums(const Operation& operation) {
    const Graph& graph = block().graph;
    const auto buffer_with = [&](ValueId id) {
      return call().buffers[static_cast<size_t>(block().slots[static_cast<size_t>(id)].base)];
    };
    for (const ValueId id : operation.outputs) {
      if (id == no_value || graph.value(id).role != Role::parameter_gradient) continue;
      for (const Axis axis : {Axis::replica, Axis::shard, Axis::context}) {
        if (graph.value(id).placements[static_cast<size_t>(axis)].kind == PlacementKind::partial)
          due_[buffer_with(id)].insert(axis);
      }
    }
    const Axis axis = operation.attributes.axis;
    if (operation.kind == OperationKind::reduce_members) {
      if (operation.attributes.from.kind == PlacementKind::partial)
        due_[buffer_with(operation.outputs[0])].erase(axis);
    } else if (operation.kind == OperationKind::reduce_scatter_bucket) {
      std::set<Axis> left = due_[buffer_with(operation.inputs[0])];
      left.erase(axis);
      due_[buffer_with(operation.outputs[0])].insert(left.begin(), left.end());
    } else {
      for (const ValueId id : operation.inputs) {
        if (id == no_value || graph.value(id).role != Role::bucket_gradient) continue;
        const std::set<Axis>& left = due_[buffer_with(id)];
        if (left.empty()) continue;
        fail(fmt::format("buffer {} is used before its sums over axis {} are made",
                         program_.buffers[static_cast<size_t>(buffer_with(id))].name,
                         name_of(*left.begin())));
      }
    }
  }

  void check_binding() const {
    if (call().template_id < 0 || call().template_id >= static_cast<TemplateId>(program_.templates.size())) {
      fail(fmt::format("there is no template {}", call().template_id));
    }
    const size_t bases = block().bases.size();
    if (call().buffers.size() != bases || call().base_offsets.size() != bases) {
      fail(fmt::format("{} buffers and {} offsets for {} bases", call().buffers.size(),
                       call().base_offsets.size(), bases));
    }
    for (size_t i = 0; i < bases; ++i) {
      const Base& base = block().bases[i];
      const BufferId id = call().buffers[i];
      if (id < 0 || id >= static_cast<BufferId>(program_.buffers.size())) {
        fail(fmt::format("base {} is bound to buffer {} of {}", base.name, id, program_.buffers.size()));
      }
      const Buffer& buffer = program_.buffers[static_cast<size_t>(id)];
      const int64_t offset = call().base_offsets[i];
      if (offset < 0 || offset + base.bytes > buffer.bytes) {
        fail(fmt::format("base {} has bytes [{}, {}) of buffer {}, which has {}", base.name, offset,
                         offset + base.bytes, buffer.name, buffer.bytes));
      }
      if (is_persistent(base.buffer_class) != is_persistent(buffer.buffer_class)) {
        fail(fmt::format("base {} ({}) is bound to buffer {} ({})", base.name, name_of(base.buffer_class),
                         buffer.name, name_of(buffer.buffer_class)));
      }
      if (!is_persistent(buffer.buffer_class) && (call_ < buffer.first_call || call_ > buffer.last_call)) {
        fail(fmt::format("buffer {} lives in calls {} to {} only", buffer.name, buffer.first_call,
                         buffer.last_call));
      }
    }
    const auto& operations = block().graph.operations;
    if (call().accumulate.size() != operations.size()) {
      fail(fmt::format("{} accumulate flags for {} operations", call().accumulate.size(), operations.size()));
    }
    for (size_t i = 0; i < operations.size(); ++i) {
      if (call().accumulate[i] && !row_of(operations[i].kind).accumulates) {
        fail("it cannot accumulate", static_cast<int32_t>(i));
      }
    }
  }

  void read(const Access& access, const StridedMap<bool>& written, const StridedRange& bytes) const {
    const Buffer& buffer = buffer_of(access);
    if (is_state(buffer.buffer_class)) return;
    if (const BucketTable* table = bucket_of(access)) {
      read_bucket(access, *table, written);
      return;
    }
    const auto piece = written.find(bytes, [](const bool* found) { return found == nullptr; });
    if (!piece) return;
    fail(fmt::format("{} reads bytes [{}, {}) of buffer {}, which nothing has written in this step",
                     describe(access), piece->first.begin, piece->first.end, buffer.name),
         access.operation);
  }

  // The table of the members when a whole gradient bucket is read.
  const BucketTable* bucket_of(const Access& access) const {
    const Graph& graph = block().graph;
    if (access.value == no_value || graph.value(access.value).role != Role::bucket_gradient) return nullptr;
    const Attributes& attributes = graph.operations[static_cast<size_t>(access.operation)].attributes;
    const int64_t table = attributes.table;
    if (attributes.extent > 0) return nullptr;  // a part of the bucket, written by a collective
    return table < 0 || table >= static_cast<int64_t>(graph.tables.size())
               ? nullptr
               : &graph.tables[static_cast<size_t>(table)];
  }

  // Every member has been written; padding between members need not be.
  void read_bucket(const Access& access, const BucketTable& table, const StridedMap<bool>& written) const {
    const int64_t start = call().base_offsets[static_cast<size_t>(access.base)] +
                          block().slots[static_cast<size_t>(access.value)].offset;
    const auto element = static_cast<int64_t>(size_of(block().graph.value(access.value).dtype));
    for (const BucketMember& member : table.members) {
      const StridedRange bytes{start + member.offset * element, member.length() * element, 0, 1};
      if (written.find(bytes, [](const bool* found) { return found == nullptr; })) {
        fail(fmt::format("the gradient of {} is never written", fill_layer(member.name, call().layer)),
             access.operation);
      }
    }
  }

  // The first contribution of the step overwrites, every other one adds.
  void accumulate(const Access& access, StridedMap<bool>& written, const StridedRange& bytes) {
    const bool adds = call().accumulate[static_cast<size_t>(access.operation)];
    if (const auto piece =
            written.find(bytes, [&](const bool* found) { return (found != nullptr) != adds; })) {
      fail(fmt::format("{} {} bytes [{}, {}) of buffer {}, which {}", describe(access),
                       adds ? "adds to" : "overwrites", piece->first.begin, piece->first.end,
                       buffer_of(access).name,
                       adds ? "nothing has written in this step" : "hold another contribution"),
           access.operation);
    }
    written.assign(bytes, true);
    if (call().micro_batch < 0 || !is_persistent(buffer_of(access).buffer_class)) return;
    const BufferId buffer = call().buffers[static_cast<size_t>(access.base)];
    auto& counts = contributions_[{buffer, bytes.begin, bytes.end()}];
    counts.resize(static_cast<size_t>(program_.micro_batches), 0);
    if (call().micro_batch >= program_.micro_batches)
      fail(fmt::format("there are {} micro-batches", program_.micro_batches));
    ++counts[static_cast<size_t>(call().micro_batch)];
  }

  void write(const Access& access, StridedMap<bool>& written, const StridedRange& bytes) const {
    const Buffer& buffer = buffer_of(access);
    if (buffer.buffer_class == BufferClass::gradients) {
      if (const auto piece = written.find(bytes, [](const bool* found) { return found != nullptr; })) {
        fail(fmt::format("{} overwrites gradients in bytes [{}, {}) of buffer {}", describe(access),
                         piece->first.begin, piece->first.end, buffer.name),
             access.operation);
      }
    }
    written.assign(bytes, true);
  }

  // Every micro-batch contributes to each gradient as often as the others.
  void check_contributions() const {
    for (const auto& [place, counts] : contributions_) {
      for (size_t m = 1; m < counts.size(); ++m) {
        if (counts[m] == counts[0]) continue;
        fail(fmt::format("bytes [{}, {}) of buffer {} get {} contributions from micro-batch 0 and {} from {}",
                         place.begin, place.end, program_.buffers[static_cast<size_t>(place.buffer)].name,
                         counts[0], counts[m], m));
      }
    }
  }

  // The update is made whole or not at all, whatever becomes of other ranks meanwhile: collectives before it
  // are known to have ended well, and no part of it depends on one behind its begin.
  void check_update() {
    const bool communicates = runs_on(call_, StreamKind::communication);
    if (update_begin_ < 0 && changes_weights(block())) update_begin_ = call_;
    if (update_begin_ < 0) {
      if (communicates && !block().is_mixed()) last_collective_ = call_;
      return;
    }
    const int32_t ended =
        known_[static_cast<size_t>(StreamKind::compute)][static_cast<size_t>(StreamKind::communication)];
    if (call_ == update_begin_ && ended < last_collective_)
      fail(fmt::format("weights are changed before the collectives of call {} are known to have ended",
                       last_collective_));
    if (!runs_on(call_, StreamKind::compute)) return;
    if (communicates) fail("collectives among the parts of the update");
    for (const int32_t wait : call().waits) {
      if (wait > update_begin_ && runs_on(wait, StreamKind::communication))
        fail(fmt::format("it waits for call {}, collectives behind the begin of the update", wait));
    }
  }

  bool runs_on(int32_t call, StreamKind stream) const {
    const auto id = static_cast<size_t>(program_.calls[static_cast<size_t>(call)].template_id);
    return std::ranges::any_of(program_.templates[id].instructions,
                               [stream](const Instruction& each) { return each.stream == stream; });
  }

  // ---- order between streams

  void start_streams() {
    Clock waited = no_call;
    for (const int32_t wait : call().waits) {
      if (wait < 0 || wait >= call_) fail(fmt::format("it waits for call {}", wait));
      waited = joined(waited, done_[static_cast<size_t>(wait)]);
    }
    for (size_t s = 0; s < streams; ++s) known_[s] = joined(on_stream_[s], waited);
    waited_ = waited;
  }

  // Different streams may meet in the same bytes only if one call is known to have ended before the other
  // starts. Whole hulls of what an access covers are compared, in the arena, so that reuse of bytes is
  // ordered too.
  void order(const Access& access) {
    if (access.ranges.empty()) return;
    const Buffer& buffer = buffer_of(access);
    const int64_t start = buffer.offset + call().base_offsets[static_cast<size_t>(access.base)];
    ByteRange bytes{start + access.ranges.front().begin, start + access.ranges.front().end()};
    for (const StridedRange& range : access.ranges) {
      bytes.begin = std::min(bytes.begin, start + range.begin);
      bytes.end = std::max(bytes.end, start + range.end());
    }
    const auto mine = static_cast<size_t>(access.stream);
    const bool writes = access.kind != AccessKind::read;
    auto& arena = is_persistent(buffer.buffer_class) ? persistent_uses_ : transient_uses_;
    arena.update(bytes, Use{}, [&](Use& use) {
      for (size_t other = 0; other < streams; ++other) {
        if (other == mine) continue;
        const int32_t needed = writes ? std::max(use.written[other], use.read[other]) : use.written[other];
        if (needed == call_ || needed <= known_[mine][other])
          continue;  // within a call: the template's check
        fail(fmt::format("{} on stream {} uses bytes of buffer {} that call {} uses on stream {}, without "
                         "waiting for it",
                         describe(access), name_of(access.stream), buffer.name, needed,
                         name_of(static_cast<StreamKind>(other))),
             access.operation);
      }
      (writes ? use.written : use.read)[mine] = call_;
    });
  }

  void end_streams() {
    Clock& done = done_[static_cast<size_t>(call_)];
    done = waited_;
    const bool mixed = block().is_mixed();
    for (const Instruction& instruction : block().instructions) {
      if (mixed && instruction.stream == StreamKind::communication) continue;
      const auto s = static_cast<size_t>(instruction.stream);
      on_stream_[s] = known_[s];
      on_stream_[s][s] = call_;
      done = joined(done, on_stream_[s]);
    }
  }

  struct Place {
    BufferId buffer;
    int64_t begin, end;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  const StepProgram& program_;
  std::vector<std::vector<Access>> accesses_;            // by template
  std::vector<StridedMap<bool>> written_;                // by buffer: written in this step
  std::map<Place, std::vector<int32_t>> contributions_;  // by micro-batch
  std::map<BufferId, std::set<Axis>> due_;               // sums over ranks that buffers of gradients lack
  IntervalMap<Use> persistent_uses_, transient_uses_;
  // What is known where a stream stands, and where the present call starts.
  std::array<Clock, streams> on_stream_{no_call, no_call, no_call}, known_{no_call, no_call, no_call};
  Clock waited_ = no_call;
  std::vector<Clock> done_;  // by call: what is known when it has ended
  int32_t call_ = -1;
  int32_t update_begin_ = -1, last_collective_ = -1;  // calls
};

}  // namespace

void verify(const StepProgram& program) {
  ProgramVerifier(program).run();
}

}  // namespace athanor
