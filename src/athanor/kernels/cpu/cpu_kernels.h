// What the families of CPU kernels add to the kernel table; add_cpu_kernels() (kernel.h) calls them all.
//
// Each is implemented beside its kernels. Thread safety: as KernelTable, filled before it is read.
#pragma once

#include "athanor/kernels/kernel.h"

namespace athanor {

void add_cpu_matmul_kernels(KernelTable& table);
void add_cpu_attention_kernels(KernelTable& table);
void add_cpu_elementwise_kernels(KernelTable& table);

}  // namespace athanor
