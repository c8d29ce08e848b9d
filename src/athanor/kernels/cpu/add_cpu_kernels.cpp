#include "athanor/kernels/cpu/cpu_kernels.h"

namespace athanor {

void add_cpu_kernels(KernelTable&) {}

}  // namespace athanor
