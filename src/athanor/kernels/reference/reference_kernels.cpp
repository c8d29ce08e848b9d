#include "athanor/kernels/reference/access.h"

namespace athanor {

void add_reference_kernels(KernelTable& table) {
  reference::add_embedding(table);
  reference::add_matmul(table);
  reference::add_norm(table);
  reference::add_elementwise(table);
  reference::add_rotary(table);
  reference::add_attention(table);
  reference::add_cache(table);
  reference::add_loss(table);
  reference::add_vocabulary(table);
  reference::add_local_part(table);
  reference::add_batch(table);
  reference::add_optimizer(table);
  reference::add_lamb(table);
}

}  // namespace athanor
