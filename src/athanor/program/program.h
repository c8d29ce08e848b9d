// The step program: what compile makes and execute, the verifier, the planner's print and the simulator read.
//
// A program is a list of calls of templates. A template is one compiled segment (a block's forward, say); its
// values have slots: an offset from one of the template's bases. A call binds the bases to buffers. Buffers
// lie in one of two arenas: persistent (weights, optimizer state, gradients: one plan for all programs of a
// set) and transient (planned per program, lifetimes in calls). Nothing is allocated while a step runs.
// Thread safety: a value type, constant once compiled.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

enum class StreamKind : uint8_t { compute, copy, communication };
inline constexpr int stream_kind_count = 3;
const char* name_of(StreamKind kind);

// Buffers and values begin at multiples of this.
inline constexpr int64_t memory_alignment = 64;
int64_t aligned(int64_t bytes);  // the next multiple

// What a buffer holds; the memory report adds up by class.
enum class BufferClass : uint8_t {
  master_weights,
  working_weights,
  gradients,
  optimizer_state,
  average_weights,
  cache,  // keys and values of the sequences that are being continued
  scalars,
  gathered_weights,     // of a bucket whose ranks keep a part each: while it is used
  unreduced_gradients,  // of a bucket and one micro-batch, where ranks keep a part of the sum each
  batch,                // the step's micro-batches
  residual,             // residual stream and its gradient at segment boundaries
  saved,                // kept from forward to backward
  scratch,              // values that live within one call, and kernel workspaces
};
inline constexpr int buffer_class_count = 13;
const char* name_of(BufferClass buffer_class);
bool is_persistent(BufferClass buffer_class);  // scalars and above

using BufferId = int32_t;
using TemplateId = int32_t;

struct Buffer {
  std::string name;  // "saved.3", "gradients.block.3"
  BufferClass buffer_class{};
  int64_t bytes = 0;
  int64_t offset = -1;                      // within its arena, 64-byte aligned
  int32_t first_call = -1, last_call = -1;  // transient: calls between which it is live, inclusive
};

// Where a value of a template is: bytes from a base. A view's token_stride is in elements.
struct Slot {
  int32_t base = -1;  // index in Template::bases; -1: the value needs no storage
  int64_t offset = 0;
  int64_t token_stride = 0;
  int64_t chunk_bytes = 0;  // in a region: added once per iteration
};

// One of the places a template's slots are relative to.
struct Base {
  std::string
      name;  // "residual_in", "saved", "scratch", "working.block", "gradients.embedding", "batch.labels"
  BufferClass buffer_class{};
  int64_t bytes = 0;
};

// How one operation of a template's graph runs. View operations have no instruction.
//
// A template may mix operations on the compute stream with collectives on the communication stream. What is
// ordered between them stands here: a collective starts when what the compute stream had been given before it
// has ended; a compute instruction with `joins` starts when the template's collectives before it have ended.
// A call of such a template ends, for all others, with both: the compute stream joins what is left.
struct Instruction {
  int32_t operation = -1;  // index in Template::graph.operations
  StreamKind stream = StreamKind::compute;
  bool joins = false;
  Slot workspace;  // base -1 when it needs none
  int64_t workspace_bytes = 0;
};

struct Template {
  std::string name;  // "block.forward"
  Graph graph;
  std::vector<Base> bases;
  std::vector<Slot> slots;  // by ValueId
  std::vector<Instruction> instructions;
  bool is_mixed() const;  // compute and communication
};

struct Call {
  TemplateId template_id = -1;
  int32_t layer = -1;                 // fills in "{layer}"; -1 outside of blocks
  int32_t micro_batch = -1;           // -1: once a step
  std::vector<BufferId> buffers;      // by base of the template
  std::vector<int64_t> base_offsets;  // bytes into each of these buffers
  // By operation of the template: whether a row that accumulates adds (true) or is the first to write
  // (false).
  std::vector<bool> accumulate;
  std::vector<int32_t> waits;  // earlier calls, on other streams, that must have ended before it starts
};

// prefill: several tokens of a sequence into the cache, and what follows the last. decode: one token of each
// sequence. gather: whole working weights from the parts of all ranks.
enum class ProgramKind : uint8_t { train, validate, prefill, decode, gather };
inline constexpr int program_kind_count = 5;
inline constexpr bool uses_cache(ProgramKind kind) {
  return kind == ProgramKind::prefill || kind == ProgramKind::decode;
}
const char* name_of(ProgramKind kind);

struct StepProgram {
  ProgramKind kind{};
  int32_t micro_batches = 1;
  int64_t micro_batch = 0, sequence_length = 0;  // B and S
  std::vector<Template> templates;
  std::vector<Buffer> buffers;  // persistent ones first, the same in every program of a set
  std::vector<Call> calls;      // in issue order
  int64_t transient_bytes = 0;  // size of the transient arena
};

// All programs of a run over one persistent plan.
struct ProgramSet {
  int64_t persistent_bytes = 0;
  Mesh mesh;
  bool cut_buckets = false;  // ranks of axis `shard` keep a part of weights and optimizer state each
  // One per bucket, "{layer}" filled in: embedding, block 0 .. L-1, head; as a rank stores them.
  std::vector<BucketTable> tables;
  std::vector<BucketTable> whole_tables;  // the same in global shapes
  std::vector<StepProgram> programs;
  DType gradient_wire = DType::fp32;  // contributions to gradients on their way between ranks
  std::vector<std::string> notes;     // printed before the start: fallbacks and choices the compiler made
};

// The type in which elements of `dtype` travel in a collective of this kind.
DType wire_type(OperationKind kind, DType dtype, DType gradient_wire);

// The address of an operation in plan, records, simulation and hang reports.
struct Address {
  int32_t call = -1, operation = -1, iteration = 0;
  friend bool operator==(const Address&, const Address&) = default;
};

// Peak bytes by class: persistent ones in full, transient ones at the call where the sum is largest.
struct MemoryReport {
  std::array<int64_t, buffer_class_count> peak_bytes{};
  int64_t persistent_bytes = 0, transient_bytes = 0;
  int32_t peak_call = -1;
  int64_t total_bytes() const { return persistent_bytes + transient_bytes; }
};
MemoryReport memory_report(const StepProgram& program, int64_t persistent_bytes);

// Sum over the calls of the cost of their operations.
Cost cost_of(const StepProgram& program);

// Whether it changes master weights. The update of a step begins with the first call of such a template; the
// number of calls if there is none.
bool changes_weights(const Template& block);
size_t update_begin(const StepProgram& program);

// Throws Error(stop_job) naming call, operation and buffer when: a buffer or base is out of range or a slot
// leaves its buffer; something is read that no earlier operation of the step wrote (persistent state apart);
// the first write of a gradient accumulates, or a later one does not; a member of a gradient bucket is never
// written; two transient buffers whose lives overlap share bytes; a call uses a buffer outside of its life; a
// dependency between streams has no wait; gradients are used before their sums over ranks have been made; a
// part of the update depends on a collective that may fail when other parts have been made.
void verify(const StepProgram& program);

std::string to_text(const Template& block);                                     // `show block`
std::string calls_text(const StepProgram& program);                             // `show step`
std::string memory_text(const StepProgram& program, int64_t persistent_bytes);  // `show memory`

}  // namespace athanor
