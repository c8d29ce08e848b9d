#include "athanor/train/dump.h"

#include <gtest/gtest.h>

#include <cstring>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/execute/resolved_program.h"
#include "athanor/train/tensor_parts.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

struct Tensor {
  DType dtype{};
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

class DumpTest : public testing::TestWithParam<const char*> {
 protected:
  DumpTest() {
    options_ = tiny_options(GetParam());
    options_.micro_batch_counts = {2};
    options_.compile.head_chunk_tokens = 5;  // of 16 tokens
    engine_ = make_engine(options_);
  }

  // Takes these tensors in a step of two micro-batches and reads the file back.
  std::map<std::string, Tensor> dumped(const std::vector<std::string>& names) {
    validate_dump_names(engine_->programs(), names);
    TensorDump dump(names);
    const std::vector<Batch> batches = {tiny_batch(options_, 0), tiny_batch(options_, 1)};
    result_ = engine_->observed_step(batches, 0, 0, 1e-2, [&](const Observation& seen) {
      dump.observe(engine_->programs().programs.front(), seen);
    });
    const TemporaryFolder folder;
    const int64_t count = dump.write(system_files(), folder.path("dump.safetensors"));
    const auto file = SafetensorsFile::open(system_files(), folder.path("dump.safetensors"));
    std::map<std::string, Tensor> tensors;
    for (const SafetensorsEntry& entry : file.header().tensors) {
      Tensor& tensor = tensors[entry.name];
      tensor = {*entry.dtype, entry.shape, std::vector<std::byte>(static_cast<size_t>(entry.bytes()))};
      file.read(entry, tensor.bytes);
    }
    EXPECT_EQ(static_cast<int64_t>(tensors.size()), count);
    return tensors;
  }
  static std::vector<std::string> names_of(const std::map<std::string, Tensor>& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    return names;
  }
  static std::vector<float> values(const Tensor& tensor) {
    std::vector<float> result(tensor.bytes.size() / sizeof(float));
    std::memcpy(result.data(), tensor.bytes.data(), tensor.bytes.size());
    return result;
  }

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  StepResult result_;
};

// Every parameter, merged ones too, by its own name: its value before the update, its gradient after the last
// micro-batch.
TEST_P(DumpTest, EveryParameterAndItsGradient) {
  const auto before = bytes_of(engine_->weights());
  std::vector<std::string> names;
  for (const auto& [name, bytes] : before) names.insert(names.end(), {name, "d." + name});
  const auto tensors = dumped(names);
  const auto gradients = bytes_of(engine_->gradients());
  for (const NamedTensor& weight : engine_->weights()) {
    const Tensor& value = tensors.at(weight.name + ".micro_batch.1");
    EXPECT_EQ(value.bytes, before.at(weight.name)) << weight.name;
    EXPECT_EQ(value.shape.size(), static_cast<size_t>(weight.shape.rank()));
    for (int dim = 0; dim < weight.shape.rank(); ++dim) {
      EXPECT_EQ(value.shape[static_cast<size_t>(dim)], weight.shape[dim]) << weight.name;
    }
    EXPECT_EQ(tensors.at("d." + weight.name + ".micro_batch.1").bytes, gradients.at(weight.name))
        << weight.name;
  }
  EXPECT_EQ(tensors.size(), 4 * before.size());  // two micro-batches each
}

TEST_P(DumpTest, NamesSayLayerMicroBatchAndChunk) {
  const auto tensors =
      dumped({"residual_out", "block.1.mlp.up", "token_loss", "logits", "loss", "gradient_norm"});
  std::vector<std::string> expected = {"gradient_norm", "loss"};  // at the end of the step
  for (const char* m : {"0", "1"}) {
    for (const char* name : {"block.1.mlp.up.micro_batch.{}", "loss.micro_batch.{}",
                             "residual_out.micro_batch.{}", "residual_out.micro_batch.{}.layer.0",
                             "residual_out.micro_batch.{}.layer.1", "token_loss.micro_batch.{}"}) {
      expected.push_back(fmt::format(fmt::runtime(name), m));
    }
    for (const char* chunk : {"0", "1", "2", "3"}) {
      expected.push_back(fmt::format("logits.micro_batch.{}.chunk.{}", m, chunk));
      expected.push_back(fmt::format("token_loss.micro_batch.{}.chunk.{}", m, chunk));
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_of(tensors), expected);
  EXPECT_EQ(tensors.at("logits.micro_batch.0.chunk.0").shape, (std::vector<int64_t>{1, 5, 37}));
  EXPECT_EQ(tensors.at("logits.micro_batch.0.chunk.3").shape, (std::vector<int64_t>{1, 1, 37}));
}

// Against what the engine itself says of the step, and against each other.
TEST_P(DumpTest, ValuesAreThoseOfTheStep) {
  const std::vector<std::string> names = {"token_loss",
                                          "loss",
                                          "gradient_norm",
                                          "block.0.attention.query",
                                          "token_ids",
                                          "block.0.attention.query.heads",
                                          "block.0.attention.flat"};
  const auto tensors = dumped(names);
  double sum = 0;
  for (const char* m : {"0", "1"}) {
    for (const float loss : values(tensors.at(fmt::format("token_loss.micro_batch.{}", m))))
      sum += static_cast<double>(loss);
    const Batch batch = tiny_batch(options_, m[0] - '0');
    const Tensor& ids = tensors.at(fmt::format("token_ids.micro_batch.{}", m));
    EXPECT_EQ(std::memcmp(ids.bytes.data(), batch.token_ids.data(), ids.bytes.size()), 0);
  }
  EXPECT_NEAR(sum, result_.loss_sum, 1e-6 * result_.loss_sum);
  double loss = 0, norm = 0;
  std::memcpy(&loss, tensors.at("loss.micro_batch.1").bytes.data(), sizeof loss);
  std::memcpy(&norm, tensors.at("gradient_norm").bytes.data(), sizeof norm);
  EXPECT_EQ(loss, result_.loss_sum);
  EXPECT_EQ(norm, result_.gradient_norm);
  // The query is a part of a merged product, with the heads as a view of it.
  const Tensor& query = tensors.at("block.0.attention.query.micro_batch.0");
  EXPECT_EQ(query.shape, (std::vector<int64_t>{2, 8, 16}));
  const Tensor& heads = tensors.at("block.0.attention.query.heads.micro_batch.0");
  EXPECT_EQ(heads.shape, (std::vector<int64_t>{2, 8, 4, 4}));
  const auto flat = values(tensors.at("block.0.attention.flat.micro_batch.0"));
  EXPECT_GT(*std::max_element(flat.begin(), flat.end()), 0);
  if (std::string(GetParam()) == "gpt2") {  // no rotation in between
    EXPECT_EQ(query.bytes, heads.bytes);
  }
}

// The dump of a product is the product of dumps.
TEST_P(DumpTest, AMergedPartIsTheProductOfItsOwnWeight) {
  // The biases are zero in the first step.
  const auto tensors =
      dumped({"block.1.attention_norm", "block.1.attention.value.weight", "block.1.attention.value"});
  const auto x = values(tensors.at("block.1.attention_norm.micro_batch.0"));
  const auto w = values(tensors.at("block.1.attention.value.weight.micro_batch.0"));
  const auto y = values(tensors.at("block.1.attention.value.micro_batch.0"));
  const size_t width = 16, out = w.size() / width;
  ASSERT_EQ(y.size(), 16 * out);
  for (size_t token = 0; token < 16; ++token) {
    for (size_t o = 0; o < out; ++o) {
      float sum = 0;
      for (size_t i = 0; i < width; ++i) sum += x[token * width + i] * w[o * width + i];
      EXPECT_NEAR(y[token * out + o], sum, 1e-5);
    }
  }
}

TEST_P(DumpTest, UnknownNamesAreRefused) {
  for (const char* name : {"block.9.mlp.up", "block.{layer}.mlp.up", "nothing", "", "block.0.mlp"}) {
    try {
      validate_dump_names(engine_->programs(), {"loss", name});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      EXPECT_NE(error.message().find(fmt::format("\"{}\"", name)), std::string::npos);
    }
  }
}

// Whatever is accepted is also written.
TEST_P(DumpTest, EveryTensorOfTheProgramCanBeDumped) {
  std::set<std::string> names;
  const StepProgram& program = engine_->programs().programs.front();
  for (const Call& call : program.calls) {
    const Template& block = program.templates[static_cast<size_t>(call.template_id)];
    for (size_t id = 0; id < block.graph.values.size(); ++id) {
      if (block.slots[id].base < 0) continue;
      for (const TensorPart& part : parts_of(block.graph, block.graph.values[id])) {
        names.insert(fill_layer(part.name, call.layer));
      }
    }
  }
  EXPECT_GT(names.size(), 100u);
  const auto tensors = dumped({names.begin(), names.end()});
  for (const std::string& name : names) {
    const auto found = tensors.lower_bound(name);
    EXPECT_TRUE(found != tensors.end() && found->first.starts_with(name)) << name;
  }
}

TEST_P(DumpTest, LookingChangesNothing) {
  const auto plain = make_engine(options_);
  const std::vector<Batch> batches = {tiny_batch(options_, 0), tiny_batch(options_, 1)};
  const StepResult expected = plain->train_step(batches, 0, 0, 1e-2);
  dumped({"loss", "block.0.attention.key.weight"});
  EXPECT_EQ(result_.loss, expected.loss);
  EXPECT_EQ(changed(bytes_of(plain->state()), bytes_of(engine_->state())), "");
}

INSTANTIATE_TEST_SUITE_P(Families, DumpTest, testing::Values("gpt2", "llama"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace athanor
