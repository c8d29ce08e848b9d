#include "athanor/checkpoint/safetensors_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error_test_support.h"
#include "athanor/base/memory_file_environment.h"

namespace athanor {
namespace {

using testing::HasSubstr;

// Tensors t0, t1, ... of so many bytes.
std::vector<TensorProducer> tensors_of(const std::vector<int64_t>& sizes) {
  std::vector<TensorProducer> tensors;
  for (size_t i = 0; i < sizes.size(); ++i) {
    tensors.push_back(
        {fmt::format("t{}", i),
         DType::u8,
         {sizes[i]},
         [i, size = sizes[i]](const TensorProducer::Sink& sink) {
           sink(std::vector<std::byte>(static_cast<size_t>(size), static_cast<std::byte>(i + 1)));
         }});
  }
  return tensors;
}

std::vector<std::string> names_in(MemoryFileEnvironment& files, const std::string& folder) {
  return files.list(folder);
}

TEST(SafetensorsShards, OneFileWhenAllFits) {
  MemoryFileEnvironment files;
  files.make_directories("d");
  const auto tensors = tensors_of({10, 20});
  const ShardReport report = write_safetensors_shards(files, "d", tensors, {{"format", "pt"}}, 30);
  EXPECT_EQ(names_in(files, "d"), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(report.bytes, files.status("d/model.safetensors")->size);
  const auto shards = SafetensorsShards::open(files, "d");
  EXPECT_EQ(shards.tensors().size(), 2U);
  EXPECT_EQ(shards.tensors().at("t0").file->header().metadata.at("format"), "pt");
}

TEST(SafetensorsShards, FilesAreFilledInOrderAndListed) {
  MemoryFileEnvironment files;
  files.make_directories("d");
  // 10 + 20 fill the first; 31 is too large for any; 5 + 6 share; 0 goes with them.
  const auto tensors = tensors_of({10, 20, 31, 5, 6, 0, 20});
  const ShardReport report = write_safetensors_shards(files, "d", tensors, {}, 30);
  EXPECT_EQ(names_in(files, "d"),
            (std::vector<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                      "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                      "model.safetensors.index.json"}));
  EXPECT_EQ(report.files.size(), 5U);
  const auto shards = SafetensorsShards::open(files, "d");
  EXPECT_TRUE(shards.notes().empty());
  ASSERT_EQ(shards.tensors().size(), tensors.size());
  const std::vector<std::string> homes = {"1", "1", "2", "3", "3", "3", "4"};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = shards.tensors().at(tensors[i].name);
    EXPECT_THAT(tensor.file->path(), HasSubstr(fmt::format("-0000{}-of", homes[i]))) << i;
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.entry->bytes()));
    tensor.file->read(*tensor.entry, bytes);
    for (const std::byte byte : bytes) EXPECT_EQ(byte, static_cast<std::byte>(i + 1));
  }
  const std::string index = read_file(files, "d/model.safetensors.index.json", 10000);
  EXPECT_THAT(index, HasSubstr("\"total_size\": 92"));
  EXPECT_THAT(index, HasSubstr("\"t6\": \"model-00004-of-00004.safetensors\""));
}

TEST(SafetensorsShards, NothingIsWrittenOver) {
  MemoryFileEnvironment files;
  files.make_directories("d");
  write_file_atomically(files, "d/model.safetensors", "mine");
  EXPECT_THAT(error_of([&] { write_safetensors_shards(files, "d", tensors_of({1}), {}, 30); }),
              HasSubstr("d/model.safetensors"));
  EXPECT_EQ(read_file(files, "d/model.safetensors", 100), "mine");
}

class HostileIndex : public testing::Test {
 protected:
  HostileIndex() {
    files.make_directories("d");
    write_safetensors_shards(files, "d", tensors_of({10, 20}), {}, 20);
  }
  std::string refused(const std::string& index) {
    write_file_atomically(files, "d/model.safetensors.index.json", index);
    return error_of([&] { SafetensorsShards::open(files, "d"); });
  }
  MemoryFileEnvironment files;
  const std::string one = "model-00001-of-00002.safetensors", two = "model-00002-of-00002.safetensors";
  std::string map(const std::string& first, const std::string& second, const std::string& more = "") {
    return fmt::format(R"({{"weight_map":{{"t0":"{}","t1":"{}"{}}}}})", first, second, more);
  }
};

TEST_F(HostileIndex, IsRefusedByName) {
  EXPECT_THAT(refused("{"), HasSubstr("not JSON"));
  EXPECT_THAT(refused(""), HasSubstr("not JSON"));
  EXPECT_THAT(refused("[]"), HasSubstr("no weight_map"));
  EXPECT_THAT(refused("{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(refused(R"({"weight_map":[]})"), HasSubstr("no weight_map"));
  EXPECT_THAT(refused(R"({"weight_map":{"t0":1}})"), HasSubstr("'t0' is no text"));
  EXPECT_THAT(refused(R"({"weight_map":{"t0":"a","t0":"b"}})"), HasSubstr("'t0' comes twice"));
  EXPECT_THAT(refused(std::string("{}\0", 3)), HasSubstr("NUL"));
  EXPECT_THAT(refused("{\"weight_map\":" + std::string(100000, '[')), HasSubstr("nested"));
  EXPECT_THAT(refused(map("../d/" + one, two)), HasSubstr("beside it"));
  EXPECT_THAT(refused(map("/etc/passwd", two)), HasSubstr("beside it"));
  EXPECT_THAT(refused(map("model.bin", two)), HasSubstr("beside it"));
  EXPECT_THAT(refused(map("none.safetensors", two)), HasSubstr("none.safetensors"));
  EXPECT_THAT(refused(map(two, two)), HasSubstr("tensor 't0' is not in"));
  EXPECT_THAT(refused(map(two, one)), HasSubstr("is in 'd/" + one + "', not in"));
  EXPECT_THAT(refused(map(one, two, ",\"t2\":\"" + one + "\"")), HasSubstr("tensor 't2' is not in"));
  EXPECT_THAT(refused(fmt::format(R"({{"weight_map":{{"x":"{}"}}}})", one)),
              HasSubstr("does not list tensor 't0'"));
}

TEST_F(HostileIndex, OddIsNoted) {
  write_file_atomically(files, "d/model.safetensors.index.json",
                        R"({"metadata":{"total_size":7},)" + map(one, two).substr(1));
  EXPECT_THAT(SafetensorsShards::open(files, "d").notes().at(0), HasSubstr("7 bytes"));
  write_safetensors(files, "d/model.safetensors", {}, {});
  EXPECT_THAT(SafetensorsShards::open(files, "d").notes().at(0), HasSubstr("is not used"));
}

TEST_F(HostileIndex, ATensorInTwoFilesIsRefused) {
  write_safetensors(files, "d/" + two, {}, {});
  stream_safetensors(files, "d/" + two, tensors_of({10, 20}), {});
  EXPECT_THAT(refused(map(one, two)), HasSubstr("tensor 't0' is in 'd/" + one + "' and in 'd/" + two));
}

TEST(SafetensorsShards, OtherKindsOfFilesAreRefused) {
  MemoryFileEnvironment files;
  files.make_directories("d");
  write_file_atomically(files, "d/pytorch_model.bin", "PK");
  EXPECT_THAT(error_of([&] { SafetensorsShards::open(files, "d"); }), HasSubstr("neither model.safetensors"));
  EXPECT_FALSE(SafetensorsShards::exist(files, "d"));
}

}  // namespace
}  // namespace athanor
