// The calls of a program in issue order, before they are bound to buffers: where collectives between calls
// stand, what waits for what, how long their memory is in use.
//
// Internal to `compile` (assemble.cpp). Thread safety: one thread.
//
// Calls of the model run on the compute stream, one after another. Between them stand calls that are nothing
// but collectives, on the communication stream. Such a call starts when the compute call before it has ended;
// which compute call waits for it is said here. So it runs beside the compute calls in between, and its
// memory is not given away before it is waited for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "athanor/program/program.h"

namespace athanor {

inline constexpr size_t no_call = static_cast<size_t>(-1);

// Of the tables embedding, block 0 .. L-1, head: kinds 0, 1, 2, and the layer of a block (else -1).
inline size_t bucket_kind(size_t table, size_t tables) {
  return table == 0 ? 0 : table + 1 < tables ? 1 : 2;
}
inline int32_t bucket_layer(size_t table, size_t tables) {
  return bucket_kind(table, tables) == 1 ? static_cast<int32_t>(table) - 1 : -1;
}

struct PlannedCall {
  TemplateId id = -1;
  int32_t layer = -1, micro_batch = -1;
  // Buffers of the residual stream and its gradient on either side.
  std::string residual_in = {}, residual_out = {}, gradient_in = {}, gradient_out = {};
  int64_t norms_offset = 0;                          // bytes, of the bucket's members in vectors of norms
  std::map<std::string, std::string> gathered = {};  // "working.NAME" -> the buffer it was gathered into
  std::vector<size_t> waits = {};                    // earlier calls, by index
  size_t freed_before = 0;  // collectives: the call from which on their memory may have other uses
};

class CallOrder {
 public:
  // `program` has the templates; gathers run ahead, and reductions may lag, by `window` compute calls.
  CallOrder(const StepProgram& program, int32_t window) : program_(program), window_(window) {}

  size_t add(PlannedCall call);
  void add_awaited(PlannedCall call) { wait_next({add(std::move(call))}); }
  void wait_next(const std::vector<size_t>& calls);  // the next compute call waits for them
  void wait_later(size_t call);                      // the compute call `window` later does

  // Has the weights of each bucket gathered before the calls that use them. `gather`: by kind of bucket.
  void insert_gathers(const std::vector<TemplateId>& gather, const std::vector<BucketTable>& tables);

  std::vector<PlannedCall> take();

 private:
  const Template& block_of(const PlannedCall& call) const {
    return program_.templates[static_cast<size_t>(call.id)];
  }
  bool runs_on(const PlannedCall& call, StreamKind stream) const;

  struct Late {
    size_t call;
    int32_t compute_calls_left;
  };
  const StepProgram& program_;
  int32_t window_;
  std::vector<PlannedCall> calls_;
  std::vector<size_t> pending_;
  std::deque<Late> late_;
};

}  // namespace athanor
