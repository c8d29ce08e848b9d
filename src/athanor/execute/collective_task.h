// A collective operation of a program, made ready to run on this rank: whose ranks take part, what is packed
// before it travels and unpacked after.
//
// Called by execute's executor and, for its workspace, by whoever describes a backend to the compiler.
// Thread safety: made by one thread; run() on the communication stream.
//
// A collective of comm moves blocks that lie one after another. Operations cut any dim of a tensor, in
// zigzags and with padding, and neighbours may hold the same part: where the cut is not along the outermost
// dim in plain order, blocks are put together in a workspace, by the same stored_ranges that define a part.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "athanor/execute/rank_context.h"
#include "athanor/ir/graph.h"
#include "athanor/kernels/kernel.h"

namespace athanor {

// The group of ranks that differ from this one along the axis alone; of `repeat` neighbours among them when
// `repeat` is not 0. Its number is the same on all of them, of no other group of a rank.
Group group_on_axis(const Mesh& mesh, const Coordinates& coordinates, Axis axis, int32_t repeat);

// Scratch bytes when all operands are compact.
int64_t collective_workspace_bytes(const Operation& operation, std::span<const OperandType> inputs,
                                   std::span<const OperandType> outputs);

class CollectiveTask {
 public:
  // `arguments` (operands, workspace, accumulate) at their final places. The group is added when it is new.
  CollectiveTask(const RankContext& context, const Operation& operation, const KernelArguments& arguments,
                 std::string label);
  ~CollectiveTask();
  void run();

 private:
  // One dim of a tensor, for copies between the whole and blocks that hold a part of it.
  struct Copy {
    TensorView tensor;
    int dim = 0;
    std::vector<Range> ranges;  // which indices of the dim the block holds, in its order
    std::byte* block = nullptr;
  };
  template <class Visit>
  static void for_each_run(const Copy& copy, const Visit& visit);
  static void copy_to_block(const Copy& copy);
  static void copy_from_block(const Copy& copy);

  std::byte* take_workspace(int64_t bytes);
  std::byte* compact_input(const TensorView& x);
  std::byte* compact_output(const TensorView& y);
  std::vector<Range> ranges_of(const Placement& placement, int64_t length, int member) const;
  std::vector<int64_t> owned_counts(const Shape& whole, const Placement& placement) const;
  void prepare(CollectiveKind kind, const std::byte* input, std::byte* output, DType dtype,
               std::vector<int64_t> counts, std::vector<int64_t> receive_counts = {});
  void prepare_all_reduce(const TensorView& x, const TensorView& y);
  void prepare_all_gather(const TensorView& x, const TensorView& y);
  void prepare_reduce_scatter(const TensorView& x, const TensorView& y);
  void prepare_all_to_all(const TensorView& x, const TensorView& y);
  void prepare_shift(const TensorView& x, const TensorView& y);
  void prepare_reduce_members(const TensorView& bucket);
  void add_to_output() const;

  const RankContext context_;
  const Attributes attributes_;
  const std::string label_;
  const OperationKind kind_;
  Group group_;
  int member_ = 0;
  std::span<std::byte> workspace_;
  std::vector<Copy> before_, after_;
  std::vector<std::unique_ptr<PreparedCollective>> collectives_;
  TensorView added_to_;  // outputs that `sum_` is added to
  const std::byte* sum_ = nullptr;
  TensorView padded_;  // an output of which elements from `padding_from_` on are padding
  int64_t padding_from_ = 0;
};

}  // namespace athanor
