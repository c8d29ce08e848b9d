#include "athanor/kernels/cpu/matmul_bf16.h"

#include <cpuid.h>

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/onednn_thread.h"

namespace athanor::cpu {
namespace {

struct BFloat16Features {
  bool bf16 = false, amx = false, fp16 = false;
};

BFloat16Features features() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto includes = [&](dnnl::cpu_isa set) {
    return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  BFloat16Features found;
  found.bf16 = includes(dnnl::cpu_isa::avx512_core_bf16);
  found.amx = includes(dnnl::cpu_isa::avx512_core_amx);
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) found.fp16 = (edx >> 23 & 1U) != 0;
  return found;
}

}  // namespace

bool has_bf16_instructions() {
  return features().bf16;
}

bool bf16_instructions_pay() {
  // Cores that also have AVX512-FP16 run the bf16 dot product at half the rate of the fp32 fused
  // multiply-add: they leave such work to AMX, which a virtual machine may hide.
  const BFloat16Features found = features();
  return found.bf16 && (found.amx || !found.fp16);
}

struct BFloat16Tiles::State {
  // A primitive for each size of tile, and for each thread the memory descriptions that it is called with.
  struct Tile {
    dnnl::matmul primitive;
    std::vector<std::vector<dnnl_exec_arg_t>> arguments;  // [thread]: A, B, sums, scratch
    std::vector<dnnl::memory> memories;                   // owns them
  };
  using Size = std::pair<int64_t, int64_t>;

  EvenSplit rows, columns;
  int64_t scratch_bytes = 0;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;  // [thread]
  std::map<Size, Tile> tiles;

  Size size(int64_t row_part, int64_t column_part) const {
    return {rows.end(row_part) - rows.begin(row_part), columns.end(column_part) - columns.begin(column_part)};
  }
  void add(Size size, int64_t depth, const ProductOperand& a, const ProductOperand& b, int threads);
};

void BFloat16Tiles::State::add(Size size, int64_t depth, const ProductOperand& a, const ProductOperand& b,
                               int threads) {
  using dnnl::memory;
  const auto [tile_rows, tile_columns] = size;
  const memory::dims a_strides = a.depth_contiguous ? memory::dims{a.stride, 1} : memory::dims{1, a.stride};
  const memory::dims b_strides = b.depth_contiguous ? memory::dims{1, b.stride} : memory::dims{b.stride, 1};
  const memory::desc a_desc({tile_rows, depth}, memory::data_type::bf16, a_strides);
  const memory::desc b_desc({depth, tile_columns}, memory::data_type::bf16, b_strides);
  const memory::desc sums_desc({tile_rows, tile_columns}, memory::data_type::f32,
                               memory::dims{tile_columns, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a_desc, b_desc, sums_desc), attributes,
                                                 engine);
  Tile tile{dnnl::matmul(description), {}, {}};
  const memory::desc scratch_desc = description.scratchpad_desc();
  scratch_bytes = std::max(scratch_bytes, static_cast<int64_t>(scratch_desc.get_size()));
  for (int thread = 0; thread < threads; ++thread) {
    std::vector<dnnl_exec_arg_t> arguments;
    for (const auto& [name, desc] : {std::pair{DNNL_ARG_SRC, a_desc},
                                     {DNNL_ARG_WEIGHTS, b_desc},
                                     {DNNL_ARG_DST, sums_desc},
                                     {DNNL_ARG_SCRATCHPAD, scratch_desc}}) {
      tile.memories.emplace_back(desc, engine, nullptr);
      arguments.push_back({name, tile.memories.back().get()});
    }
    tile.arguments.push_back(std::move(arguments));
  }
  tiles.emplace(size, std::move(tile));
}

BFloat16Tiles::BFloat16Tiles(const ProductOperand& a, const ProductOperand& b, const EvenSplit& rows,
                             const EvenSplit& columns, int64_t depth, int threads)
    : state_(std::make_unique<State>()) {
  const OneThread one_thread;
  state_->rows = rows;
  state_->columns = columns;
  try {
    for (int thread = 0; thread < threads; ++thread) state_->streams.emplace_back(state_->engine);
    for (int64_t row_part = 0; row_part < rows.parts; ++row_part) {
      for (int64_t column_part = 0; column_part < columns.parts; ++column_part) {
        const State::Size size = state_->size(row_part, column_part);
        if (!state_->tiles.contains(size)) state_->add(size, depth, a, b, threads);
      }
    }
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::stop_job, fmt::format("oneDNN cannot multiply bf16 matrices: {}", error.what()));
  }
}

BFloat16Tiles::~BFloat16Tiles() = default;

int64_t BFloat16Tiles::scratch_bytes() const {
  return state_->scratch_bytes;
}

void BFloat16Tiles::multiply(const ProductOperand& a, const ProductOperand& b, int64_t row_part,
                             int64_t column_part, float* sums, std::byte* scratch, int thread) const {
  const OneThread one_thread;
  const State::Tile& tile = state_->tiles.at(state_->size(row_part, column_part));
  const auto& arguments = tile.arguments[static_cast<size_t>(thread)];
  const void* const pointers[] = {a.at(state_->rows.begin(row_part), 0),
                                  b.at(state_->columns.begin(column_part), 0), sums, scratch};
  dnnl_status_t status = dnnl_success;
  for (size_t i = 0; i < arguments.size() && status == dnnl_success; ++i)
    status = dnnl_memory_set_data_handle(arguments[i].memory, const_cast<void*>(pointers[i]));
  if (status == dnnl_success)
    status = dnnl_primitive_execute(tile.primitive.get(), state_->streams[static_cast<size_t>(thread)].get(),
                                    static_cast<int>(arguments.size()), arguments.data());
  if (status != dnnl_success)
    throw Error(ErrorKind::stop_job,
                fmt::format("oneDNN failed to multiply a tile: status {}", static_cast<int>(status)));
}

}  // namespace athanor::cpu
