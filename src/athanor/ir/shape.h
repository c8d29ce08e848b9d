// Tensor shapes: up to six dims, any of which may be `bounded`: its size is then a maximum and a count
// tensor says at run time how much of it is in use.
//
// Called by every room that touches tensors. Thread safety: values.
//
// Shape legend, used in comments everywhere:
//   B samples of a micro-batch   S sequence length   T = B*S tokens   D model width   F feed-forward width
//   H query heads   K key/value heads   E head dim   V vocabulary   N, K output and input features of a
//   product
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace athanor {

class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const;  // dim may be negative: -1 is the last
  void set(int dim, int64_t size);
  void append(int64_t size);

  bool bounded(int dim) const { return (bounded_ >> dim & 1U) != 0; }
  void set_bounded(int dim) { bounded_ = static_cast<uint8_t>(bounded_ | 1U << dim); }

  int64_t elements() const;            // 1 for rank 0
  int64_t rows() const;                // elements / last dim: the rows of a matrix product (0 if empty)
  int64_t tokens() const;              // product of the first two dims (of all dims below rank 2)
  int64_t elements_per_token() const;  // product of the dims after the first two

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, max_rank> sizes_{};
  uint8_t rank_ = 0;
  uint8_t bounded_ = 0;
};

std::string to_text(const Shape& shape);  // "[2,<=16,64]": "<=" marks a bounded dim
// The inverse; nothing for other text, and for shapes of more elements than 2^60.
std::optional<Shape> parse_shape(std::string_view text);

}  // namespace athanor
