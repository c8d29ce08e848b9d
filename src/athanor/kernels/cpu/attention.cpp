#include "athanor/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/attention_plan.h"
#include "athanor/kernels/cpu/attention_simd.h"

// clang-format off: the first decides what the second declares.
#include "athanor/kernels/cpu/highway_targets.h"
#include <hwy/targets.h>
// clang-format on

namespace athanor::cpu {
namespace {

void check(const AttentionShape& shape, const AttentionOptions& options, const AttentionTokens& queries,
           const AttentionTokens& keys) {
  const auto refuse = [](const std::string& what) { throw_user_error("attention: " + what); };
  if (shape.batch < 0 || shape.query_length < 0 || shape.key_length < 0) refuse("a length is negative");
  if (shape.key_heads < 1 || shape.query_heads < 1 || shape.query_heads % shape.key_heads != 0)
    refuse(fmt::format("{} key heads do not divide {} query heads", shape.key_heads, shape.query_heads));
  if (shape.head_size < 1 || shape.head_size > 256)
    refuse(fmt::format("the head size is {}, not 1 to 256", shape.head_size));
  if (!(options.scale > 0) || !std::isfinite(static_cast<float>(options.scale)))
    refuse(fmt::format("the scale is {}, not positive and finite", options.scale));
  if (options.window < 0) refuse(fmt::format("the window is {}, negative", options.window));
  const double probability = options.dropout.probability;
  if (!(probability >= 0 && probability < 1))
    refuse(fmt::format("the dropout probability is {}, not in [0, 1)", probability));
  const bool random = probability > 0;
  const auto complete = [&](const AttentionTokens& tokens) {
    return tokens.positions != nullptr && tokens.documents != nullptr &&
           (tokens.indices != nullptr || !random);
  };
  const bool queries_empty = shape.batch * shape.query_length == 0,
             keys_empty = shape.batch * shape.key_length == 0;
  ATHANOR_ASSERT((queries_empty || complete(queries)) && (keys_empty || complete(keys)),
                 "attention needs positions and documents, with dropout indices too");
  ATHANOR_ASSERT(!random || shape.batch == 0 || options.dropout.sample_ids != nullptr);
}

bool is_float_storage(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

void check_before(std::initializer_list<ConstRows> results) {
  for (const ConstRows& rows : results)
    if (rows.present() && !is_float_storage(rows.dtype)) unsupported_type(rows.dtype);
}

// What both directions lay out in the workspace: ranges, one scratch a thread, partial sums.
struct Layout {
  AttentionGrid grid;
  int64_t range_bytes, scratch_bytes, partial_bytes;

  Layout(const AttentionShape& shape, AttentionDirection direction) : grid(shape, direction) {
    Carver ranges(nullptr), scratch(nullptr), partial(nullptr);
    carve_ranges(ranges, shape, grid);
    carve_scratch(scratch, shape, grid, direction);
    carve_partial(partial, shape);
    range_bytes = ranges.used();
    scratch_bytes = scratch.used();
    partial_bytes = partial.used();
  }
  struct Partial {
    float* sums;
    uint8_t* summed;
  };
  Partial carve_partial(Carver& carver, const AttentionShape& shape) const {
    const int64_t tiles = grid.chunks > 1 ? grid.tiles : 0;
    Partial partial{};
    partial.sums = carver.take<float>(tiles * 2 * shape.key_length * grid.padded_size);
    partial.summed = carver.take<uint8_t>(tiles * grid.key_blocks);
    return partial;
  }
  int64_t bytes(int threads) const { return range_bytes + scratch_bytes * threads + partial_bytes; }
};

void find_ranges(const AttentionTokens& tokens, int64_t batch, int64_t length, int64_t group_count,
                 int64_t block_count, TokenRange* groups, TokenRange* blocks) {
  for (int64_t b = 0; b < batch; ++b) {
    find_group_ranges(tokens.positions + b * length, tokens.documents + b * length, length,
                      groups + b * group_count);
    find_block_ranges(groups + b * group_count, group_count, blocks + b * block_count);
  }
}

// Cuts the items (units, heads in turn within each) of every sample into chunks of about equally many visible
// blocks.
void find_chunks(const AttentionJob& job) {
  const AttentionGrid& grid = job.grid;
  const int64_t heads = job.shape.query_heads / job.shape.key_heads;
  for (int64_t b = 0; b < job.shape.batch; ++b) {
    const TokenRange* queries = job.ranges.query_blocks + b * grid.query_blocks;
    const TokenRange* keys = job.ranges.key_blocks + b * grid.key_blocks;
    const auto work_of = [&](int64_t unit) {  // of one head
      int64_t work = 0;
      for (int64_t q = unit * grid.panels; q < std::min(grid.query_blocks, (unit + 1) * grid.panels); ++q)
        for (int64_t k = 0; k < grid.key_blocks; ++k)
          work += visibility(queries[q], keys[k], job.options.window) != Visibility::none ? 1 : 0;
      return work;
    };
    int64_t total = 0;
    for (int64_t unit = 0; unit < grid.units_per_head; ++unit) total += work_of(unit) * heads;
    int64_t* starts = job.ranges.chunk_starts + b * (grid.chunks + 1);
    int64_t chunk = 0, before = 0;
    for (int64_t unit = 0; unit < grid.units_per_head; ++unit) {
      const int64_t work = work_of(unit);
      for (int64_t head = 0; head < heads; ++head, before += work)
        while (chunk < grid.chunks && before * grid.chunks >= total * chunk)
          starts[chunk++] = unit * heads + head;
    }
    while (chunk <= grid.chunks) starts[chunk++] = grid.units_per_head * heads;
  }
}

AttentionJob make_job(const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionTokens& queries, const AttentionTokens& keys, const Layout& layout,
                      AttentionDirection direction, int threads, std::byte* workspace) {
  Carver carver(workspace);
  AttentionJob job{.shape = shape,
                   .options = options,
                   .grid = layout.grid,
                   .ranges = {},
                   .query_tokens = queries,
                   .key_tokens = keys,
                   .q = {},
                   .k = {},
                   .v = {},
                   .out_read = {},
                   .dout = {},
                   .out_before = {},
                   .logsumexp_before = {},
                   .dq_before = {},
                   .dk_before = {},
                   .dv_before = {},
                   .out = {},
                   .dq = {},
                   .dk = {},
                   .dv = {},
                   .logsumexp = {},
                   .logsumexp_read = {}};
  job.ranges = carve_ranges(carver, shape, layout.grid);
  job.scratch = workspace + layout.range_bytes;
  job.scratch_bytes = layout.scratch_bytes;
  Carver partial_carver(workspace + layout.range_bytes + layout.scratch_bytes * threads);
  const Layout::Partial partial = layout.carve_partial(partial_carver, shape);
  job.partial_sums = partial.sums;
  job.partial_summed = partial.summed;
  for (int thread = 0; thread < threads; ++thread) {
    Carver scratch(job.scratch + thread * job.scratch_bytes);
    *carve_scratch(scratch, shape, layout.grid, direction).packed_owner = -1;
  }
  const AttentionGrid& grid = layout.grid;
  find_ranges(queries, shape.batch, shape.query_length, grid.query_groups, grid.query_blocks,
              job.ranges.query_groups, job.ranges.query_blocks);
  find_ranges(keys, shape.batch, shape.key_length, grid.key_groups, grid.key_blocks, job.ranges.key_groups,
              job.ranges.key_blocks);
  if (grid.chunks > 1) find_chunks(job);
  return job;
}

// Highway chooses on the first call through its table, and until then each tile would ask the processor
// again.
void choose_target() {
  hwy::ChosenTarget& chosen = hwy::GetChosenTarget();
  if (!chosen.IsInitialized()) chosen.Update(hwy::SupportedTargets());
}

bool takes_dot(AttentionArithmetic wanted, std::initializer_list<DType> dtypes) {
  for (const DType dtype : dtypes) {
    if (dtype != DType::bf16) return false;
  }
  if (wanted == AttentionArithmetic::automatic) return bf16_dot_preferred();
  if (wanted == AttentionArithmetic::convert) return false;
  if (!bf16_dot_supported()) throw_user_error("attention: this processor has no bf16 dot products");
  return true;
}

}  // namespace

bool bf16_dot_supported() {
  return bf16_forward_tile() != nullptr && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

bool bf16_dot_preferred() {
  return bf16_dot_supported() && __builtin_cpu_is("amd") != 0;
}

int64_t attention_workspace_bytes(const AttentionShape& shape, AttentionDirection direction, int threads) {
  return Layout(shape, direction).bytes(threads);
}

void attention_forward(const AttentionForward& call, ThreadTeam& team, std::byte* workspace) {
  check(call.shape, call.options, call.query_tokens, call.key_tokens);
  for (const DType dtype : {call.q.dtype, call.k.dtype, call.v.dtype, call.out.dtype})
    if (!is_float_storage(dtype)) unsupported_type(dtype);
  check_before({call.out_before});
  ATHANOR_ASSERT(call.out_before.present() == call.logsumexp_before.present(),
                 "attention needs both results of earlier parts, or none");
  for (const DType dtype : {call.logsumexp.dtype, call.logsumexp_before.dtype})
    if (dtype != DType::fp32) unsupported_type(dtype);
  const Layout layout(call.shape, AttentionDirection::forward);
  AttentionJob job = make_job(call.shape, call.options, call.query_tokens, call.key_tokens, layout,
                              AttentionDirection::forward, team.size(), workspace);
  job.q = call.q;
  job.k = call.k;
  job.v = call.v;
  job.out_before = call.out_before;
  job.logsumexp_before = call.logsumexp_before;
  job.out = call.out;
  job.logsumexp = call.logsumexp;
  const bool dot = takes_dot(call.options.arithmetic, {call.q.dtype, call.k.dtype, call.v.dtype});
  choose_target();
  const AttentionTile tile = dot ? bf16_forward_tile() : simd_forward_tile();
  team.parallel_for(layout.grid.tiles, [&](int64_t index, int thread) { tile(job, index, thread); });
}

void attention_backward(const AttentionBackward& call, ThreadTeam& team, std::byte* workspace) {
  check(call.shape, call.options, call.query_tokens, call.key_tokens);
  for (const DType dtype : {call.q.dtype, call.k.dtype, call.v.dtype, call.out.dtype, call.dout.dtype,
                            call.dq.dtype, call.dk.dtype, call.dv.dtype})
    if (!is_float_storage(dtype)) unsupported_type(dtype);
  check_before({call.dq_before, call.dk_before, call.dv_before});
  if (call.logsumexp.dtype != DType::fp32) unsupported_type(call.logsumexp.dtype);
  const Layout layout(call.shape, AttentionDirection::backward);
  AttentionJob job = make_job(call.shape, call.options, call.query_tokens, call.key_tokens, layout,
                              AttentionDirection::backward, team.size(), workspace);
  job.q = call.q;
  job.k = call.k;
  job.v = call.v;
  job.out_read = call.out;
  job.dout = call.dout;
  job.dq_before = call.dq_before;
  job.dk_before = call.dk_before;
  job.dv_before = call.dv_before;
  job.dq = call.dq;
  job.dk = call.dk;
  job.dv = call.dv;
  job.logsumexp_read = call.logsumexp;
  const bool dot =
      takes_dot(call.options.arithmetic, {call.q.dtype, call.k.dtype, call.v.dtype, call.dout.dtype});
  choose_target();
  const AttentionTile tile = dot ? bf16_backward_tile() : simd_backward_tile();
  team.parallel_for(layout.grid.tiles, [&](int64_t index, int thread) { tile(job, index, thread); });
  if (layout.grid.chunks == 1) return;
  const AttentionTile sum_tile = simd_sum_tile();
  team.parallel_for(call.shape.batch * call.shape.key_heads * layout.grid.key_blocks,
                    [&](int64_t index, int thread) { sum_tile(job, index, thread); });
}

}  // namespace athanor::cpu
