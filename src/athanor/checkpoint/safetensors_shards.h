// Tensors in one safetensors file or spread over several with an index, as the ecosystem names them:
// model.safetensors, or model-00001-of-0000N.safetensors and model.safetensors.index.json.
// docs/formats/safetensors.md.
//
// Called by whoever exchanges weights with other programs. Errors: user errors with the path. Thread safety:
// a SafetensorsShards may be read from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/safetensors.h"

namespace athanor {

class SafetensorsShards {
 public:
  // Reads and checks the headers of all files in `folder`, and that the index names exactly what they hold.
  static SafetensorsShards open(FileEnvironment& files, const std::string& folder);
  // True if the folder has one of the two forms.
  static bool exist(FileEnvironment& files, const std::string& folder);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  // By name. The pointers stay valid as long as this object, also when it is moved.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Whatever is odd but does no harm.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void add(const SafetensorsFile& file);

  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::vector<std::string> notes_;
};

struct ShardReport {
  std::vector<std::string> files;  // paths, the index too
  int64_t bytes = 0;               // of all of them
};

// Writes the tensors in the order given: a file is full when the next tensor would bring its data above
// `max_shard_bytes`; a larger tensor has one of its own. The index comes last. Refuses to write over
// anything.
ShardReport write_safetensors_shards(FileEnvironment& files, const std::string& folder,
                                     std::span<const TensorProducer> tensors,
                                     const SafetensorsMetadata& metadata, int64_t max_shard_bytes);

}  // namespace athanor
