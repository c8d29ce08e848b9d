// Tiled causal attention on the CPU, forward and backward: never a query x key matrix, only tiles of
// 64 x 64 that live in the cache.
//
// Called by the attention entries of the CPU kernel table, and directly by tests and benchmarks.
// Thread safety: a call uses its ThreadTeam and its workspace alone; calls with different ones may run
// at the same time. The bits of the results do not depend on the size of the team.
//
// Shapes, in the legend of ir/shape.h: q, out, dq, dout [B,Sq,H,E], k, v, dk, dv [B,Sk,K,E], logsumexp
// [B,Sq,H] fp32. K divides H: query head h reads key head h / (H / K). Row (b, s) of a tensor
// starts at element (b * S + s) * stride; the heads of a token are contiguous, E elements each.
//
// Visibility compares values, never local indices: key j is visible to query i iff their documents are
// equal, position[j] <= position[i], and position[i] - position[j] < window (window 0: no limit). Positions
// may stand in any order and queries and keys may be different parts of a sample (key cache, context
// parallel parts). Blocks that are invisible as a whole are not computed. A query without visible
// keys has out 0, logsumexp -infinity and gradients 0. Masked keys weigh exactly 0, so their values
// change no bit of the result as long as they are finite.
//
//   score = scale * q . k,   logsumexp = log sum exp(score),   p = exp(score - logsumexp),   out = sum p v
//
// A call may be one of several that share the keys of its queries among them (parts of a ring of ranks).
// Given `out` and logsumexp of earlier parts, forward gives those of all parts so far; backward takes those
// of all parts and adds to the gradients of earlier ones. With dropout the keys' indices are global, so every
// way to cut the keys drops the same pairs.
//
// Types: fp32, bf16 or fp16 for each of q, k, v, out and their gradients. Scores, softmax,
// statistics and accumulation are fp32. In bf16 on processors whose bf16 dot products are fast, p and its
// gradient are rounded to bf16 before they are multiplied.
//
// Source of the algorithm: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
// Partitioning", 2023, with queries (not features) in the lanes of the vector registers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/attention_blocks.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

struct AttentionShape {
  int64_t batch = 0;         // B
  int64_t query_length = 0;  // Sq
  int64_t key_length = 0;    // Sk
  int64_t query_heads = 0;   // H
  int64_t key_heads = 0;     // K
  int64_t head_size = 0;     // E, 1 to 256; multiples of 16 are fast
};

// Dropout of the weights p, by the layout of kernels/dropout_coordinates.h: a pair is dropped when its word
// is below the threshold, and kept ones are multiplied by dropout_scale.
struct AttentionDropout {
  double probability = 0;  // 0 <= probability < 1; 0 is none and nothing below is read
  uint64_t seed = 0;
  uint64_t name_hash = 0;  // of the operation's logical name
  int64_t step = 0;
  int64_t first_head = 0;               // global number of query head 0
  const int64_t* sample_ids = nullptr;  // [B]
};

// How bf16 tensors are multiplied. `automatic` takes dot products of bf16 pairs where the processor has
// them at twice the rate of fp32 (AMD from Zen 4) and converts to fp32 elsewhere: on Intel's Sapphire
// Rapids the AVX-512 form runs at half the fp32 rate. A function of the processor alone.
enum class AttentionArithmetic : uint8_t { automatic, convert, dot };
// Whether this processor can run AttentionArithmetic::dot, and whether `automatic` takes it.
bool bf16_dot_supported();
bool bf16_dot_preferred();

struct AttentionOptions {
  double scale = 1;    // > 0
  int64_t window = 0;  // keys visible to a query, itself included; 0 is all
  AttentionDropout dropout;
  AttentionArithmetic arithmetic = AttentionArithmetic::automatic;
  // If not null, grows by the number of 64 x 64 blocks that were computed.
  std::atomic<int64_t>* computed_blocks = nullptr;
};

struct AttentionForward {
  AttentionShape shape;
  AttentionOptions options;
  AttentionTokens query_tokens, key_tokens;
  ConstRows q, k, v;
  ConstRows out_before = {}, logsumexp_before = {};  // of earlier parts (logsumexp fp32), or both absent
  Rows out;
  Rows logsumexp;  // fp32
};

struct AttentionBackward {
  AttentionShape shape;
  AttentionOptions options;
  AttentionTokens query_tokens, key_tokens;
  ConstRows q, k, v, out, dout;
  ConstRows logsumexp;  // as forward wrote it
  ConstRows dq_before = {}, dk_before = {},
            dv_before = {};  // of earlier parts, each absent where there is none
  Rows dq, dk, dv;           // overwritten
};

enum class AttentionDirection : uint8_t { forward, backward };

// Bytes of workspace that a call with a team of `threads` needs. Linear in the lengths and in `threads`.
int64_t attention_workspace_bytes(const AttentionShape& shape, AttentionDirection direction, int threads);

// Both run on `team` and return when done. `workspace` is 64-byte aligned, of at least the size that
// attention_workspace_bytes says for team.size(); its contents do not matter. Nothing is allocated.
// Throws Error (user) for sizes, types or options that are not as described above.
void attention_forward(const AttentionForward& call, ThreadTeam& team, std::byte* workspace);
void attention_backward(const AttentionBackward& call, ThreadTeam& team, std::byte* workspace);

}  // namespace athanor::cpu
