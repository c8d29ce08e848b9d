#include "athanor/hugging_face/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "athanor/base/error_test_support.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/hugging_face/weights.h"
#include "athanor/model/model.h"

namespace athanor {
namespace {

using testing::HasSubstr;

const std::vector<std::string> names = {"gpt2", "gpt2_inner", "llama", "llama_tied", "mistral"};

std::string fixture(const std::string& name) {
  return ATHANOR_SOURCE_DIR "/tests/data/hugging_face/" + name;
}

// The fixture's files in memory, to be changed.
void copy_fixture(MemoryFileEnvironment& files, const std::string& name, const std::string& folder) {
  files.make_directories(folder);
  for (const std::string& file : system_files().list(fixture(name))) {
    write_file_atomically(files, join_path(folder, file),
                          read_file(system_files(), join_path(fixture(name), file), 1 << 20));
  }
}

struct Stored {
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  friend bool operator==(const Stored&, const Stored&) = default;
};

std::map<std::string, Stored> stored_in(FileEnvironment& files, const std::string& folder) {
  std::map<std::string, Stored> result;
  const auto shards = SafetensorsShards::open(files, folder);
  for (const auto& [name, tensor] : shards.tensors()) {
    Stored stored{*tensor.entry->dtype, tensor.entry->shape, {}};
    stored.bytes.resize(static_cast<size_t>(tensor.entry->bytes()));
    tensor.file->read(*tensor.entry, stored.bytes);
    result[name] = std::move(stored);
  }
  return result;
}

std::vector<double> values_of(const WeightReader& weights, const std::string& name) {
  const WeightEntry* entry = weights.find(name);
  EXPECT_NE(entry, nullptr) << name;
  std::vector<double> values(static_cast<size_t>(entry->elements()));
  weights.read(*entry, DType::fp64, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(HuggingFaceWeights, HaveEveryParameterOfTheModelInItsShape) {
  for (const std::string& name : names) {
    const auto weights = HuggingFaceWeights::open(system_files(), fixture(name));
    size_t parameters = 0;
    for (const BucketTable& table : bucket_tables(weights.config().model)) {
      for (const BucketMember& member : table.members) {
        const WeightEntry* entry = weights.find(member.name);
        ASSERT_NE(entry, nullptr) << name << " " << member.name;
        EXPECT_EQ(static_cast<int>(entry->shape.size()), member.shape.rank());
        EXPECT_EQ(entry->elements(), member.shape.elements());
        ++parameters;
      }
    }
    EXPECT_EQ(weights.entries().size(), parameters) << name;
  }
}

TEST(HuggingFaceWeights, MatricesOfGpt2AreTransposedAndTheirThirdsTakenApart) {
  const auto weights = HuggingFaceWeights::open(system_files(), fixture("gpt2"));
  const auto stored = stored_in(system_files(), fixture("gpt2"));
  const Stored& merged = stored.at("transformer.h.1.attn.c_attn.weight");
  ASSERT_EQ(merged.shape, (std::vector<int64_t>{24, 72}));
  const char* thirds[] = {"query", "key", "value"};
  for (int64_t third = 0; third < 3; ++third) {
    const auto values = values_of(weights, fmt::format("block.1.attention.{}.weight", thirds[third]));
    for (int64_t output = 0; output < 24; ++output) {
      for (int64_t input = 0; input < 24; ++input) {
        ASSERT_EQ(values[static_cast<size_t>(output * 24 + input)],
                  float_at(merged.dtype, merged.bytes, input * 72 + third * 24 + output));
      }
    }
    const auto bias = values_of(weights, fmt::format("block.1.attention.{}.bias", thirds[third]));
    const Stored& merged_bias = stored.at("transformer.h.1.attn.c_attn.bias");
    for (int64_t i = 0; i < 24; ++i) {
      ASSERT_EQ(bias[static_cast<size_t>(i)], float_at(merged_bias.dtype, merged_bias.bytes, third * 24 + i));
    }
  }
}

TEST(HuggingFaceExchange, WhatIsImportedIsExportedBitForBit) {
  for (const std::string& name : names) {
    for (const int64_t shard : {int64_t{1} << 30, int64_t{9000}}) {
      MemoryFileEnvironment files;
      const auto weights = HuggingFaceWeights::open(system_files(), fixture(name));
      CheckpointFolder folder(files, "imported/checkpoints", {});
      const SaveReport saved = import_weights(weights, folder, {{"configuration", "text"}});
      const CheckpointWeights checkpoint(Checkpoint::open(files, saved.path));
      EXPECT_EQ(checkpoint.checkpoint().state().at("configuration"), "text");
      export_weights(
          files, checkpoint, weights.config().model, "out",
          {.dtype = {}, .max_shard_bytes = shard, .weight_prefix = "", .tokens = weights.config().tokens});
      EXPECT_EQ(files.exists("out/model.safetensors.index.json"), shard == 9000) << name;
      auto expected = stored_in(system_files(), fixture(name));
      if (name == "gpt2_inner") {  // the whole model is written
        std::map<std::string, Stored> prefixed;
        for (auto& [key, value] : expected) prefixed["transformer." + key] = std::move(value);
        expected = std::move(prefixed);
      }
      const auto actual = stored_in(files, "out");
      EXPECT_EQ(actual.size(), expected.size()) << name;
      for (const auto& [key, value] : expected) {
        ASSERT_TRUE(actual.contains(key)) << key;
        EXPECT_TRUE(actual.at(key) == value) << key;
      }
      const auto again = HuggingFaceWeights::open(files, "out");
      ModelConfig original = weights.config().model;
      original.head_dim = again.config().model.head_dim;  // told or not, the same
      EXPECT_EQ(original.head_dim_or_default(), weights.config().model.head_dim_or_default());
      EXPECT_EQ(again.config().model, original) << name;
      EXPECT_EQ(again.config().dtype, weights.config().dtype) << name;
      EXPECT_EQ(again.config().tokens, weights.config().tokens) << name;
    }
  }
}

TEST(HuggingFaceExchange, OtherTypesAreRoundedToNearest) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::fp64}) {
    MemoryFileEnvironment files;
    const auto weights = HuggingFaceWeights::open(system_files(), fixture("gpt2"));
    export_weights(files, weights, weights.config().model, "out",
                   {.dtype = dtype, .max_shard_bytes = 1 << 30, .weight_prefix = "", .tokens = {}});
    const auto before = stored_in(system_files(), fixture("gpt2")), after = stored_in(files, "out");
    const double unit = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0;
    for (const auto& [name, stored] : after) {
      EXPECT_EQ(stored.dtype, dtype);
      const Stored& original = before.at(name);
      for (size_t i = 0; i < stored.bytes.size() / size_of(dtype); ++i) {
        const double value = float_at(original.dtype, original.bytes, static_cast<int64_t>(i));
        ASSERT_NEAR(float_at(dtype, stored.bytes, static_cast<int64_t>(i)), value,
                    unit * std::abs(value) + (dtype == DType::fp16 ? 0x1p-25 : 0));
      }
    }
    EXPECT_EQ(HuggingFaceWeights::open(files, "out").config().dtype, dtype);
  }
}

TEST(HuggingFaceExchange, P128_ATiedHeadIsStoredOnceAndTiedAgain) {
  // A file that stores the head a second time, as older ones do.
  MemoryFileEnvironment files;
  copy_fixture(files, "llama_tied", "in");
  auto stored = stored_in(files, "in");
  stored["lm_head.weight"] = stored.at("model.embed_tokens.weight");
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : stored)
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  write_safetensors(files, "in/model.safetensors", tensors, {});
  const auto weights = HuggingFaceWeights::open(files, "in");
  EXPECT_TRUE(weights.config().model.tied_head);
  EXPECT_EQ(weights.find("head.weight"), nullptr);
  CheckpointFolder folder(files, "imported", {});
  const CheckpointWeights checkpoint(Checkpoint::open(files, import_weights(weights, folder, {}).path));
  EXPECT_EQ(checkpoint.find("head.weight"), nullptr);
  export_weights(files, checkpoint, weights.config().model, "out", {});
  const auto exported = stored_in(files, "out");
  EXPECT_FALSE(exported.contains("lm_head.weight"));
  EXPECT_EQ(exported.size() + 1, stored.size());
  EXPECT_TRUE(read_hugging_face_config(files, "out").model.tied_head);
}

class ChangedFolder : public testing::Test {
 protected:
  // The fixture's tensors, to be changed and written.
  void load(const std::string& name) {
    copy_fixture(files, name, "in");
    stored = stored_in(files, "in");
  }
  std::string refused() {
    std::vector<TensorBytes> tensors;
    for (const auto& [name, tensor] : stored)
      tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    write_safetensors(files, "in/model.safetensors", tensors, {});
    return error_of([&] { HuggingFaceWeights::open(files, "in"); });
  }
  MemoryFileEnvironment files;
  std::map<std::string, Stored> stored;
};

TEST_F(ChangedFolder, DifferencesOfTensorsAreRefusedByName) {
  load("llama_tied");
  const auto sound = stored;
  stored.erase("model.norm.weight");
  EXPECT_THAT(refused(), HasSubstr("missing (1): model.norm.weight"));
  stored = sound;
  stored["model.layers.2.mlp.up_proj.weight"] = stored.at("model.norm.weight");
  EXPECT_THAT(refused(), HasSubstr("not of such a model (1): model.layers.2.mlp.up_proj.weight"));
  stored = sound;
  stored["model.layers.0.mlp.up_proj.weight"].shape = {24, 40};
  EXPECT_THAT(refused(), HasSubstr("model.layers.0.mlp.up_proj.weight (file [24,40], config.json [40,24])"));
  stored = sound;
  stored["model.norm.weight"].dtype = DType::int32;
  EXPECT_THAT(refused(), HasSubstr("weights cannot have (1): model.norm.weight (I32)"));
  stored = sound;
  stored["lm_head.weight"] = stored.at("model.embed_tokens.weight");
  stored["lm_head.weight"].bytes[0] ^= std::byte{1};
  EXPECT_THAT(refused(), HasSubstr("lm_head.weight and model.embed_tokens.weight differ"));
  stored.clear();
  EXPECT_THAT(refused(), HasSubstr("and 26 more"));
}

TEST_F(ChangedFolder, ConstantBuffersAreSkipped) {
  load("gpt2");
  for (const char* name : {"transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"}) {
    stored[name] = {DType::u8, {1}, std::vector<std::byte>(1)};
  }
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : stored)
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  write_safetensors(files, "in/model.safetensors", tensors, {});
  EXPECT_EQ(HuggingFaceWeights::open(files, "in").entries().size(), 36U);
}

TEST_F(ChangedFolder, ADamagedFileOfOursIsRefused) {
  const auto weights = HuggingFaceWeights::open(system_files(), fixture("llama"));
  export_weights(files, weights, weights.config().model, "out", {});
  std::string bytes = read_file(files, "out/model.safetensors", 1 << 20);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(files, "out/model.safetensors", bytes);
  EXPECT_THAT(error_of([&] { HuggingFaceWeights::open(files, "out"); }), HasSubstr("checksum of tensor"));
}

TEST(HuggingFaceExchange, NothingIsWrittenOver) {
  MemoryFileEnvironment files;
  files.make_directories("out");
  write_file_atomically(files, "out/config.json", "mine");
  const auto weights = HuggingFaceWeights::open(system_files(), fixture("llama"));
  const std::string message =
      error_of([&] { export_weights(files, weights, weights.config().model, "out", {}); });
  EXPECT_THAT(message, HasSubstr("out/config.json"));
  EXPECT_EQ(read_file(files, "out/config.json", 100), "mine");
}

TEST(HuggingFaceExchange, ValuesThatAreNoNumbersAndMissingWeightsAreRefused) {
  MemoryFileEnvironment files;
  const auto weights = HuggingFaceWeights::open(system_files(), fixture("llama"));
  CheckpointFolder folder(files, "run", {});
  import_weights(weights, folder, {});
  const CheckpointWeights checkpoint(Checkpoint::open(files, folder.path_of(0)));
  const ExportOptions options{
      .dtype = {}, .max_shard_bytes = 1 << 30, .weight_prefix = "average.", .tokens = {}};
  EXPECT_THAT(error_of([&] { export_weights(files, checkpoint, weights.config().model, "out", options); }),
              HasSubstr("average.embedding.token.weight is missing"));
  ModelConfig wider = weights.config().model;
  wider.vocabulary += 1;
  EXPECT_THAT(error_of([&] { export_weights(files, checkpoint, wider, "out", {}); }),
              HasSubstr("embedding.token.weight is [61,24], the model's is [62,24]"));
  EXPECT_FALSE(files.exists("out"));

  copy_fixture(files, "llama_tied", "in");
  auto stored = stored_in(files, "in");
  const float infinity = INFINITY;
  std::memcpy(stored.at("model.norm.weight").bytes.data() + 8, &infinity, 4);
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : stored)
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  write_safetensors(files, "in/model.safetensors", tensors, {});
  const auto spoilt = HuggingFaceWeights::open(files, "in");
  CheckpointFolder other(files, "other", {});
  EXPECT_THAT(error_of([&] { import_weights(spoilt, other, {}); }),
              HasSubstr("element 2 of final_norm.weight is inf"));
  EXPECT_TRUE(files.list("other").empty());
  EXPECT_THAT(error_of([&] { export_weights(files, spoilt, spoilt.config().model, "again", {}); }),
              HasSubstr("final_norm.weight has the value inf"));
}

}  // namespace
}  // namespace athanor
