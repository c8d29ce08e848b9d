// Tensors that lie on many ranks, on their way to one file: ranks send their parts to rank 0, which writes
// them.
//
// A part is bytes and the runs that say where in the whole tensor they belong (ir/part.h). Rank 0 holds a
// bounded piece of one tensor at a time, never a whole one. Called by train when it saves and when it gathers
// weights. Thread safety: one thread; all ranks make the same calls in the same order.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/checkpoint/checkpoint.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/ir/part.h"

namespace athanor {

// What this rank has of a tensor. All ranks name the same tensors in the same order.
struct RankTensor {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;  // of the whole tensor
  std::span<const std::byte> bytes;
  std::vector<StoredRun> runs;  // where the elements in `bytes` belong
};

// Puts tensors together on rank 0, in the order in which rank 0 asks for them.
class RankGather {
 public:
  // All ranks: finds out who has what. Tensors must stay as they are while this lives.
  RankGather(RankMessages& messages, std::vector<RankTensor> tensors);

  // Rank 0: producers that make the whole tensors from all ranks' parts while they are written.
  std::vector<TensorProducer> producers();
  // Rank 0, when all has been produced that will be: releases the others, which return from serve().
  void finish();
  // Every other rank: sends what rank 0 asks for, until it has finished.
  void serve();

 private:
  // Elements [first, first + length) of a tensor that a rank has: pieces in the order of the tensor.
  struct Piece {
    int64_t global_first, length;
    const std::byte* data;
  };
  void find_senders();
  std::vector<Piece> pieces(size_t tensor, int64_t first, int64_t length) const;
  std::vector<std::byte> pack(size_t tensor, int64_t first, int64_t length) const;
  void produce(size_t tensor, const TensorProducer::Sink& sink);
  int64_t elements(size_t tensor) const;
  int64_t elements_of_piece(size_t tensor) const;

  RankMessages& messages_;
  std::vector<RankTensor> tensors_;
  std::vector<std::vector<StoredRun>> by_place_;  // each tensor's runs by where they belong
  std::vector<std::vector<int>> senders_;         // rank 0: of each tensor
  std::vector<char> sends_;                       // other ranks: whether they are asked for it
};

// CheckpointFolder::save over many ranks: rank 0 writes the file and reports; the others have an empty
// report. Every rank returns when the file is there, or throws.
SaveReport save_on_ranks(CheckpointFolder& folder, RankMessages& messages, int64_t step,
                         std::vector<RankTensor> tensors, const CheckpointState& state);

}  // namespace athanor
