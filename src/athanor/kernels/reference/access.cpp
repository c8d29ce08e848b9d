#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

template <class T>
void convert(const T* source, int64_t count, double* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<double>(static_cast<float>(source[i]));
}

template <class T>
void round_to(const double* values, int64_t count, T* target, bool accumulate) {
  for (int64_t i = 0; i < count; ++i) {
    const double before = accumulate ? static_cast<double>(static_cast<float>(target[i])) : 0.0;
    target[i] = T(static_cast<float>(before + values[i]));
  }
}

[[noreturn]] void no_float(const TensorView& tensor) {
  ATHANOR_ASSERT(false, "a {} tensor where a float is wanted", name_of(tensor.dtype));
  std::abort();
}

}  // namespace

double load(const TensorView& tensor, int64_t element) {
  double value = 0;
  return *read(tensor, element, 1, &value);
}

void store(const TensorView& tensor, int64_t element, double value) {
  write(tensor, element, 1, &value);
}

int64_t load_integer(const TensorView& tensor, int64_t element) {
  if (tensor.dtype == DType::int64) return tensor.as<int64_t>()[element];
  ATHANOR_ASSERT(tensor.dtype == DType::int32, "a {} tensor where an integer is wanted",
                 name_of(tensor.dtype));
  return tensor.as<int32_t>()[element];
}

const double* read(const TensorView& tensor, int64_t first, int64_t count, double* scratch) {
  switch (tensor.dtype) {
    case DType::fp64:
      return tensor.as<double>() + first;
    case DType::fp32:
      convert(tensor.as<float>() + first, count, scratch);
      break;
    case DType::bf16:
      convert(tensor.as<BFloat16>() + first, count, scratch);
      break;
    case DType::fp16:
      convert(tensor.as<Float16>() + first, count, scratch);
      break;
    default:
      no_float(tensor);
  }
  return scratch;
}

void write(const TensorView& tensor, int64_t first, int64_t count, const double* values, bool accumulate) {
  switch (tensor.dtype) {
    case DType::fp64: {
      double* target = tensor.as<double>() + first;
      for (int64_t i = 0; i < count; ++i) target[i] = (accumulate ? target[i] : 0.0) + values[i];
      break;
    }
    case DType::fp32:
      round_to(values, count, tensor.as<float>() + first, accumulate);
      break;
    case DType::bf16:
      round_to(values, count, tensor.as<BFloat16>() + first, accumulate);
      break;
    case DType::fp16:
      round_to(values, count, tensor.as<Float16>() + first, accumulate);
      break;
    default:
      no_float(tensor);
  }
}

}  // namespace athanor::reference
