// Matrix products over activations of M tokens and a weight [N,K], on the CPU, in the three forms of
// training:
//   forward          y [M,N]  = x [M,K] weight^T + bias, activated = gelu(y as stored)
//   input_gradient   dx [M,K] = dy [M,N] weight + addend
//   weight_gradient  dweight [N,K] (+)= dy^T x
//
// Called by the kernel table's adapters. Types: fp32, bf16, fp16, each operand its own; products and sums in
// fp32, one rounding at the end. How a product is cut up depends on its shape only, and the summed dim is
// never cut between threads, so bits do not depend on the team. Nothing allocates when a product runs. Thread
// safety: a plan is constant; one run at a time per workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/matmul_grid.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

class BFloat16Tiles;

enum class ProductForm : uint8_t { forward, input_gradient, weight_gradient };

struct ProductShape {
  ProductForm form = ProductForm::forward;
  int64_t tokens = 0, outputs = 0, inputs = 0;  // M, N, K
  DType left = DType::fp32, right = DType::fp32, result = DType::fp32;
  int64_t left_stride = 0, right_stride = 0;  // of the operands that will be given; 0 is compact

  int64_t rows() const { return form == ProductForm::weight_gradient ? outputs : tokens; }
  int64_t columns() const { return form == ProductForm::forward ? outputs : inputs; }
  int64_t depth() const {
    return form == ProductForm::forward ? inputs : form == ProductForm::input_gradient ? outputs : tokens;
  }
};

// How bf16 operands are multiplied: widened to fp32 while they are packed, or by the machine's bf16
// instructions. Automatic is by instructions where they exist and pay. Other types are always widened.
enum class Bf16Arithmetic : uint8_t { automatic, widened, instructions };

// Of the types and strides that the shape says. Absent: bias, addend, activated.
struct ProductOperands {
  ConstRows left;   // x, dy, dy
  ConstRows right;  // weight, weight, x
  ConstSpan bias{nullptr, DType::fp32};
  ConstRows addend;
  Rows result;  // y, dx, dweight; may be the same memory as `addend`
  Rows activated;
  bool accumulate = false;  // add to the result
};

class ProductPlan {
 public:
  ProductPlan(const ProductShape& shape, int threads, Bf16Arithmetic arithmetic = Bf16Arithmetic::automatic);
  ~ProductPlan();
  ProductPlan(ProductPlan&&) noexcept;

  bool uses_bf16_instructions() const { return bf16_ != nullptr; }

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // `workspace`: workspace_bytes(), 64-byte aligned. The team has at most `threads` threads.
  void run(ThreadTeam& team, const ProductOperands& operands, std::span<std::byte> workspace) const;

 private:
  struct Run;
  void plan_packed(int threads);
  // Sums gather where they go, else in the workspace.
  bool direct() const { return shape_.result == DType::fp32 && bf16_ == nullptr; }
  void pack_slab(ThreadTeam& team, const Run& run, int64_t column_slab, int64_t depth_slab) const;
  void run_tile(const Run& run, int64_t column_slab, int64_t depth_slab, int64_t tile, int thread) const;
  void run_bf16_tile(const Run& run, int64_t tile, int thread) const;
  void finish(const Run& run, int64_t row, int64_t column, int64_t rows, int64_t columns, float* sums,
              int64_t sums_stride) const;

  ProductShape shape_;
  ProductGrid grid_;
  int threads_;
  // The workspace: the packed slab, then the sums if they last from slab to slab, then what each thread
  // needs: packed rows of A, and sums of a panel.
  int64_t slab_bytes_ = 0, sums_bytes_ = 0, rows_bytes_ = 0, thread_bytes_ = 0, workspace_bytes_ = 0;
  std::unique_ptr<BFloat16Tiles> bf16_;
};

}  // namespace athanor::cpu
