// debug.dump: writes tensors of a step by logical name into a safetensors file.
//
// Called by the training loop. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/train/engine.h"

namespace athanor {

// Refuses a name that no tensor of the training program has (user error).
void validate_dump_names(const ProgramSet& set, const std::vector<std::string>& names);

class TensorDump {
 public:
  explicit TensorDump(std::vector<std::string> names) : names_(std::move(names)) {}

  // Takes compact copies of the wanted tensors after an operation has run: those it read and wrote, views of
  // them, and parameters that are part of a merged tensor. The key is the logical name, with ".micro_batch.M"
  // and, where the name itself has no layer, ".layer.L" and, for a part of a loop, ".chunk.I" behind it. Of a
  // tensor that is written several times, such as a gradient that is added to, the last state stays.
  void observe(const StepProgram& program, const Observation& seen);
  // Writes what was taken; returns the number of tensors.
  int64_t write(FileEnvironment& files, const std::string& path) const;

 private:
  struct Taken {
    std::string name;
    DType dtype = DType::fp32;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  void look(const Template& block, const Call& call, ValueId id, int32_t region, const Observation& seen);
  void take(const std::string& name, const TensorView& view);

  std::vector<std::string> names_;
  std::vector<Taken> taken_;
};

}  // namespace athanor
