#include "athanor/kernels/cpu/cpu_kernels.h"

namespace athanor {

void add_cpu_kernels(KernelTable& table) {
  add_cpu_matmul_kernels(table);
  add_cpu_attention_kernels(table);
  add_cpu_elementwise_kernels(table);
}

}  // namespace athanor
