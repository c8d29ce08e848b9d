#include "athanor/checkpoint/rank_tensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/base/philox.h"
#include "athanor/comm/rank_threads.h"

namespace athanor {
namespace {

const std::string folder_name = "run/checkpoints";

struct Tensor {
  std::string name;
  DType dtype;
  Shape shape;
  Placements placements;
};

Placement shard(int dim, uint32_t unit = 1, uint16_t repeat = 1) {
  return {.kind = PlacementKind::shard, .dim = static_cast<uint8_t>(dim), .repeat = repeat, .unit = unit};
}

Placements on(Axis axis, const Placement& placement, Axis second = Axis::pipeline,
              const Placement& second_placement = {}) {
  Placements placements = placements_of(axis, placement);
  if (second != Axis::pipeline) placements[static_cast<size_t>(second)] = second_placement;
  return placements;
}

// Rows, columns, repeated heads, buckets cut over shard, whole ones, one element, none, and one of more than
// a piece.
std::vector<Tensor> tensors(const Mesh& mesh) {
  const uint16_t repeat = mesh.size(Axis::tensor) % 2 == 0 ? 2 : 1;
  return {{"whole", DType::fp32, {5, 3}, {}},
          {"rows", DType::fp32, {7, 3}, on(Axis::tensor, shard(0))},
          {"columns", DType::fp32, {6, 10}, on(Axis::tensor, shard(1, 2))},
          {"heads", DType::fp64, {8, 2}, on(Axis::tensor, shard(0, 2, repeat))},
          {"bucket", DType::fp32, {101}, on(Axis::shard, shard(0))},
          {"both", DType::bf16, {9, 14}, on(Axis::shard, shard(0), Axis::tensor, shard(1))},
          {"one", DType::fp32, {1}, on(Axis::shard, shard(0))},
          {"none", DType::fp32, {0, 4}, on(Axis::shard, shard(0))},
          {"large", DType::fp64, {1100, 1000}, on(Axis::shard, shard(0), Axis::tensor, shard(1))}};
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

// Different in every element and tensor.
void fill_element(size_t tensor, int64_t index, std::byte* out, size_t size) {
  const uint64_t value = mix64(static_cast<uint64_t>(index) * 1000 + tensor);
  std::memcpy(out, &value, size);
}

// What a rank has of the tensors.
class Storage {
 public:
  Storage(const Mesh& mesh, int rank) : tensors_(tensors(mesh)) {
    const Coordinates at = coordinates_of(mesh, rank);
    for (const Tensor& tensor : tensors_) {
      const Shape stored = storage_shape(tensor.shape, tensor.placements, mesh);
      bytes_.emplace_back(static_cast<size_t>(stored.elements()) * size_of(tensor.dtype));
      runs_.push_back(stored_runs(tensor.shape, tensor.placements, mesh, at));
    }
  }

  void fill() {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const size_t size = size_of(tensors_[t].dtype);
      for (const StoredRun& run : runs_[t]) {
        for (int64_t i = 0; i < run.length; ++i)
          fill_element(t, run.global_first + i,
                       bytes_[t].data() + static_cast<size_t>(run.local_first + i) * size, size);
      }
    }
  }

  std::vector<RankTensor> parts() const {
    std::vector<RankTensor> parts;
    for (size_t t = 0; t < tensors_.size(); ++t)
      parts.push_back(
          {tensors_[t].name, tensors_[t].dtype, sizes_of(tensors_[t].shape), bytes_[t], runs_[t]});
    return parts;
  }

  std::vector<TensorTarget> targets() {
    std::vector<TensorTarget> targets;
    for (size_t t = 0; t < tensors_.size(); ++t)
      targets.push_back(
          {tensors_[t].name, tensors_[t].dtype, sizes_of(tensors_[t].shape), bytes_[t], runs_[t]});
    return targets;
  }

  friend bool operator==(const Storage& a, const Storage& b) { return a.bytes_ == b.bytes_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<StoredRun>> runs_;
};

std::vector<Mesh> meshes() {
  std::vector<Mesh> meshes(6);
  meshes[1].sizes = {1, 1, 1, 1, 4, 1, 1};
  meshes[2].sizes = {1, 1, 3, 1, 1, 1, 1};
  meshes[3].sizes = {1, 2, 1, 1, 2, 1, 1};
  meshes[4].sizes = {1, 1, 3, 1, 2, 1, 1};
  meshes[5].sizes = {1, 1, 2, 2, 2, 1, 1};
  return meshes;
}

std::vector<std::string> save(FileEnvironment& files, const Mesh& mesh, int64_t step) {
  return run_rank_threads(static_cast<int>(mesh.ranks()), [&](Communicator& communicator) {
    RankMessages messages(&communicator);
    Storage storage(mesh, communicator.rank());
    storage.fill();
    CheckpointFolder folder(files, folder_name, {});
    const SaveReport report = save_on_ranks(folder, messages, step, storage.parts(), {{"position", "5"}});
    EXPECT_EQ(report.path.empty(), !messages.is_first());
  });
}

std::vector<std::byte> file_bytes(FileEnvironment& files, const std::string& path) {
  const auto file = files.open(path);
  std::vector<std::byte> bytes(static_cast<size_t>(file->size()));
  file->read_at(0, bytes);
  return bytes;
}

// The file does not depend on the layout, and what was saved in one loads in every other, to the bit.
TEST(RankTensors, EveryLayoutSavesTheSameFileAndLoadsIt) {
  std::vector<std::byte> expected;
  for (const Mesh& mesh : meshes()) {
    MemoryFileEnvironment files;
    for (const std::string& error : save(files, mesh, 3)) EXPECT_EQ(error, "");
    CheckpointFolder folder(files, folder_name, {});
    const auto bytes = file_bytes(files, folder.path_of(3));
    if (expected.empty()) expected = bytes;
    ASSERT_TRUE(bytes == expected);
  }
  MemoryFileEnvironment files;
  save(files, meshes()[4], 3);
  CheckpointFolder folder(files, folder_name, {});
  for (const Mesh& mesh : meshes()) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const Checkpoint checkpoint = rank == 0 ? Checkpoint::open(files, folder.path_of(3))
                                              : Checkpoint::open_checked_elsewhere(files, folder.path_of(3));
      Storage loaded(mesh, rank), wanted(mesh, rank);
      wanted.fill();
      const auto targets = loaded.targets();
      EXPECT_TRUE(checkpoint.load(targets, LoadMode::strict).empty());
      EXPECT_TRUE(loaded == wanted) << "rank " << rank;
      EXPECT_EQ(checkpoint.state().at("position"), "5");
    }
  }
}

TEST(RankTensors, RefuseAnotherShapeBeforeAnythingIsRead) {
  MemoryFileEnvironment files;
  save(files, meshes()[1], 3);
  CheckpointFolder folder(files, folder_name, {});
  Storage loaded(meshes()[2], 1);
  const Storage before(meshes()[2], 1);
  auto targets = loaded.targets();
  targets[1].shape = {7, 4};
  const Checkpoint checkpoint = Checkpoint::open_checked_elsewhere(files, folder.path_of(3));
  EXPECT_THROW(checkpoint.load(targets, LoadMode::strict), Error);
  EXPECT_TRUE(loaded == before);
}

// A damaged header is seen by every rank, damaged data by the rank that checks it.
TEST(RankTensors, DamageIsSeen) {
  MemoryFileEnvironment files;
  save(files, meshes()[1], 3);
  CheckpointFolder folder(files, folder_name, {});
  auto bytes = file_bytes(files, folder.path_of(3));
  bytes[bytes.size() - 5] ^= std::byte{1};
  write_file_atomically(files, folder.path_of(3),
                        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_THROW(Checkpoint::open(files, folder.path_of(3)), Error);
  EXPECT_NO_THROW(Checkpoint::open_checked_elsewhere(files, folder.path_of(3)));
  bytes[100] ^= std::byte{1};
  write_file_atomically(files, folder.path_of(3),
                        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_THROW(Checkpoint::open_checked_elsewhere(files, folder.path_of(3)), Error);
}

// The writer's failure is every rank's, and what was saved before stays.
TEST(RankTensors, AFullDiskEndsTheSaveOfAllRanks) {
  MemoryFileEnvironment memory;
  for (const std::string& error : save(memory, meshes()[4], 3)) EXPECT_EQ(error, "");
  FaultyFileEnvironment files(memory, {.disk_bytes = 1000});
  const auto errors = save(files, meshes()[4], 4);
  for (const std::string& error : errors) EXPECT_NE(error.find("space"), std::string::npos) << error;
  CheckpointFolder folder(memory, folder_name, {});
  EXPECT_EQ(folder.find_latest().checkpoint->step(), 3);
}

// Tensors that no rank, or only some, has in full.
TEST(RankTensors, AMissingPartIsNoZero) {
  MemoryFileEnvironment files;
  const Mesh mesh = meshes()[2];
  const auto errors = run_rank_threads(3, [&](Communicator& communicator) {
    RankMessages messages(&communicator);
    Storage storage(mesh, communicator.rank());
    auto parts = storage.parts();
    if (communicator.rank() == 1) parts[4].runs.front().length -= 1;
    CheckpointFolder folder(files, folder_name, {});
    save_on_ranks(folder, messages, 1, parts, {});
  });
  EXPECT_NE(errors[0].find("bucket: the ranks have 100 of elements 0 to 101"), std::string::npos)
      << errors[0];
  EXPECT_EQ(CheckpointFolder(files, folder_name, {}).steps(), std::vector<int64_t>{});
}

}  // namespace
}  // namespace athanor
