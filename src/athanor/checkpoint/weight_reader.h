// Weights by logical name, wherever they are kept: a checkpoint, or files of another program behind a reader
// of their own. What starts a run, generates, imports or exports reads through it.
//
// Errors: user errors that name the source and the tensor. Thread safety: const functions may be called from
// several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/checkpoint/checkpoint.h"
#include "athanor/ir/dtype.h"

namespace athanor {

struct WeightEntry {
  std::string name;            // logical
  DType dtype = DType::fp32;   // as it is kept
  std::vector<int64_t> shape;  // as the model has it
  int64_t elements() const;
};

class WeightReader {
 public:
  virtual ~WeightReader() = default;
  virtual const std::string& path() const = 0;  // for messages
  // Every tensor, in order of name.
  virtual std::span<const WeightEntry> entries() const = 0;
  // Fills `out`, elements x size_of(dtype), converting from the type it is kept in. Needs a fixed amount of
  // memory besides. Refuses a value that becomes infinite.
  virtual void read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const = 0;

  const WeightEntry* find(std::string_view name) const;  // null if there is none
};

// The tensors of a checkpoint.
class CheckpointWeights final : public WeightReader {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint);
  const std::string& path() const override { return checkpoint_.path(); }
  std::span<const WeightEntry> entries() const override { return entries_; }
  void read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const override;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  Checkpoint checkpoint_;
  std::vector<WeightEntry> entries_;
};

// Reads as many elements of a tensor of a safetensors file as `out` holds, from element `first` on, through a
// fixed buffer and converted; both types are convertible. `name` is for messages.
void read_converted(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first,
                    const std::string& name, DType dtype, std::span<std::byte> out);

// The error of a value that does not fit a type.
[[noreturn]] void refuse_overflow(const std::string& path, const std::string& name, int64_t element,
                                  double value, DType dtype);

}  // namespace athanor
