#include "athanor/kernels/cpu/rows.h"

#include "athanor/base/error.h"

namespace athanor::cpu {

void unsupported_type(DType dtype) {
  const std::string detail = fmt::format("no kernel for elements of type {}", name_of(dtype));
  assertion_failed("supported type", __FILE__, __LINE__, detail);
}

}  // namespace athanor::cpu
