// How a call of attention is cut into tiles, and where each thread keeps its scratch.
//
// Called by attention.cpp, which makes the plan, and the tile kernels, which read it. Everything here depends
// on shapes alone, never on the number of threads. Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "athanor/kernels/cpu/attention.h"
#include "athanor/kernels/cpu/attention_blocks.h"
#include "athanor/kernels/dropout_coordinates.h"

namespace athanor::cpu {

// Query blocks that share each load of a key block.
inline constexpr int64_t attention_max_panels = 4;

// Hands out 64-byte aligned pieces of a workspace; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += ceil_divide(count * static_cast<int64_t>(sizeof(T)), int64_t{64}) * 64;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// A forward tile is `panels` consecutive query blocks of one (sample, query head). A backward tile is one of
// `chunks` runs of the units (the same panels of each query head in turn) of one (sample, key head), cut so
// that each has as many visible blocks; with several chunks their key and value gradients are summed in a
// second pass.
struct AttentionGrid {
  int64_t padded_size;  // E rounded up to 16
  int64_t query_groups, key_groups, query_blocks, key_blocks;
  int64_t panels, units_per_head;  // query blocks of a tile, tiles or units of a head
  int64_t chunks;                  // backward
  int64_t tiles;

  AttentionGrid(const AttentionShape& shape, AttentionDirection direction);
};

// Ranges of tokens, shared by all tiles; [B, groups or blocks].
struct AttentionRanges {
  TokenRange *query_groups, *key_groups, *query_blocks, *key_blocks;
  int64_t* chunk_starts;  // [B, chunks + 1] backward with several chunks: the first item (unit, head) of each
};

// Scratch of one thread. Tiles have 64 columns, one a query, unless noted. Words are fp32 values, or pairs
// of bf16 values where tiles are multiplied as such (then half of some pieces stays unused).
struct AttentionScratch {
  uint32_t* queries_across;  // [panels][E] q
  float* sums_across;        // [panels][E] out, or dq
  float* maximum;            // [panels] fp32, forward; in backward logsumexp, +infinity where there is none
  float* sum;                // [panels] forward: of exponentials; in backward sum of out * dout
  float* shift;              // [1]
  float* rescale;            // [1]
  int32_t* query_positions;  // [panels]
  int32_t* query_documents;  // [panels]
  int32_t* query_lower;      // [panels] least visible position
  int32_t* query_indices;    // [panels]
  uint32_t* rows;            // [64][padded E]: staging
  // Packed blocks of the (sample, key head) that the thread worked on last, kept from tile to tile: the rows
  // of fused projections lie so far apart that reading them costs several times the copy.
  int64_t* packed_owner;      // sample * K + key head, or -1
  uint8_t* summed;            // [key blocks] backward: whether the tile has begun sums of the block
  uint8_t* written;           // [key blocks] backward: whether dk and dv of the block are written
  uint8_t* packed;            // [key blocks] whether the block is there
  uint32_t* keys;             // [key blocks][64][padded E]
  uint32_t* values;           // [key blocks][64][padded E]
  uint32_t* key_pairs;        // [key blocks][32][padded E] backward: pairs of key rows
  float* scores;              // [64 keys]
  float* value_products;      // [64 keys] backward: dout . v
  uint32_t* weights;          // [64 keys] p, as the products take it
  uint32_t* score_gradients;  // [64 keys] backward
  uint32_t* gradient_pairs;   // [32 pairs of keys] backward
  float* keep;                // [64 keys] dropout multipliers
  // Backward:
  uint32_t* gradients_across;    // [panels][E] dout
  uint32_t* query_rows;          // [panels][64][padded E]
  uint32_t* gradient_rows;       // [panels][64][padded E]
  float *key_sums, *value_sums;  // [Sk][padded E]; with several chunks they belong to the tile instead
};

AttentionScratch carve_scratch(Carver& carver, const AttentionShape& shape, const AttentionGrid& grid,
                               AttentionDirection direction);
AttentionRanges carve_ranges(Carver& carver, const AttentionShape& shape, const AttentionGrid& grid);

// Everything the tiles of one call share.
struct AttentionJob {
  AttentionShape shape;
  AttentionOptions options;
  AttentionGrid grid;
  AttentionRanges ranges;
  AttentionTokens query_tokens, key_tokens;
  ConstRows q, k, v, out_read, dout;
  ConstRows out_before, logsumexp_before, dq_before, dk_before, dv_before;  // of earlier parts of the keys
  Rows out, dq, dk, dv;
  Rows logsumexp;                // forward
  ConstRows logsumexp_read;      // backward
  std::byte* scratch = nullptr;  // of thread 0
  int64_t scratch_bytes = 0;     // of each thread
  // With several chunks; those of a tile replace the pieces of scratch.
  float* partial_sums = nullptr;      // [tiles][2][Sk][padded E]
  uint8_t* partial_summed = nullptr;  // [tiles][key blocks]
};

using AttentionTile = void (*)(const AttentionJob& job, int64_t tile, int thread);

// attention_bf16.cpp; only on processors with bf16_dot_supported(). Null where the compiler has no bf16.
AttentionTile bf16_forward_tile();
AttentionTile bf16_backward_tile();

}  // namespace athanor::cpu
