#include "athanor/ir/shape.h"

#include <fmt/core.h>

#include <charconv>

#include "athanor/base/error.h"

namespace athanor {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) append(size);
}

int64_t Shape::operator[](int dim) const {
  const int index = dim < 0 ? dim + rank_ : dim;
  ATHANOR_ASSERT(index >= 0 && index < rank_, "dim {} of a shape of rank {}", dim, rank_);
  return sizes_[static_cast<size_t>(index)];
}

void Shape::set(int dim, int64_t size) {
  const int index = dim < 0 ? dim + rank_ : dim;
  ATHANOR_ASSERT(index >= 0 && index < rank_ && size >= 0, "dim {} := {} in rank {}", dim, size, rank_);
  sizes_[static_cast<size_t>(index)] = size;
}

void Shape::append(int64_t size) {
  ATHANOR_ASSERT(rank_ < max_rank && size >= 0, "appending {} to rank {}", size, rank_);
  sizes_[rank_++] = size;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= sizes_[static_cast<size_t>(i)];
  return product;
}

int64_t Shape::rows() const {
  int64_t product = 1;
  for (int i = 0; i + 1 < rank_; ++i) product *= sizes_[static_cast<size_t>(i)];
  return product;
}

int64_t Shape::tokens() const {
  int64_t product = 1;
  for (int i = 0; i < rank_ && i < 2; ++i) product *= sizes_[static_cast<size_t>(i)];
  return product;
}

int64_t Shape::elements_per_token() const {
  int64_t product = 1;
  for (int i = 2; i < rank_; ++i) product *= sizes_[static_cast<size_t>(i)];
  return product;
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) {
    text += fmt::format("{}{}{}", i == 0 ? "" : ",", shape.bounded(i) ? "<=" : "", shape[i]);
  }
  return text + "]";
}

std::optional<Shape> parse_shape(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  constexpr int64_t maximum = int64_t{1} << 60;
  Shape shape;
  int64_t elements = 1;  // of the dims that are not empty, so that no product of some of them overflows
  while (!text.empty()) {
    const bool bounded = text.starts_with("<=");
    if (bounded) text.remove_prefix(2);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc{} || size < 0 || shape.rank() == Shape::max_rank) return std::nullopt;
    if (size > 0 && elements > maximum / size) return std::nullopt;
    elements *= size > 0 ? size : 1;
    shape.append(size);
    if (bounded) shape.set_bounded(shape.rank() - 1);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) break;
    if (text.front() != ',' || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return shape;
}

}  // namespace athanor
