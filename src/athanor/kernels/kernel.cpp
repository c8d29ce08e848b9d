#include "athanor/kernels/kernel.h"

namespace athanor {

DType key_dtype(std::span<const OperandType> inputs, std::span<const OperandType> outputs) {
  for (const auto types : {inputs, outputs}) {
    for (const OperandType& type : types) {
      if (type.present && is_float(type.dtype)) return type.dtype;
    }
  }
  for (const auto types : {inputs, outputs}) {
    if (!types.empty()) return types.front().dtype;
  }
  return DType::fp32;  // no operands at all
}

}  // namespace athanor
