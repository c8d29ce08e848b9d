// Models of transformers give the same logits here, and import and export need little memory.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "athanor/base/temporary_folder.h"
#include "athanor/hugging_face/exchange.h"
#include "athanor/hugging_face/weights.h"
#include "athanor/train/engine.h"
#include "athanor/train/initialise_from.h"

namespace athanor {
namespace {

// input_ids and logits as transformers computed them (tools/reference/README.md).
struct Expected {
  int64_t samples = 0, tokens = 0, vocabulary = 0;
  std::vector<int64_t> ids;
  std::vector<double> logits;

  explicit Expected(const std::string& folder) {
    const auto file = SafetensorsFile::open(system_files(), folder + "/logits.safetensors");
    const SafetensorsEntry& entry = *file.find("logits");
    samples = entry.shape.at(0);
    tokens = entry.shape.at(1);
    vocabulary = entry.shape.at(2);
    ids.resize(static_cast<size_t>(samples * tokens));
    logits.resize(static_cast<size_t>(samples * tokens * vocabulary));
    file.read(*file.find("input_ids"), std::as_writable_bytes(std::span(ids)));
    file.read(entry, std::as_writable_bytes(std::span(logits)));
  }

  double largest() const {
    double largest = 0;
    for (const double value : logits) largest = std::max(largest, std::abs(value));
    return largest;
  }
  // The loss of one place with one label.
  double loss(int64_t place, int32_t label) const {
    const double* row = logits.data() + place * vocabulary;
    double maximum = row[0], sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) maximum = std::max(maximum, row[v]);
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - maximum);
    return maximum + std::log(sum) - row[label];
  }
  // All tokens, and one label that counts.
  Batch batch(int64_t place, int32_t label) const {
    Batch batch;
    batch.samples = samples;
    batch.sequence_length = tokens;
    for (int64_t i = 0; i < samples * tokens; ++i) {
      batch.token_ids.push_back(static_cast<int32_t>(ids[static_cast<size_t>(i)]));
      batch.labels.push_back(i == place ? label : ignored_label);
      batch.positions.push_back(static_cast<int32_t>(i % tokens));
      batch.documents.push_back(0);
    }
    batch.indices = whole_indices(samples, tokens);
    for (int64_t s = 0; s < samples; ++s) batch.sample_ids.push_back(s);
    return batch;
  }
};

std::string fixture(const std::string& name) {
  return ATHANOR_SOURCE_DIR "/tests/data/hugging_face/" + name;
}

std::unique_ptr<Engine> engine_with(const HuggingFaceWeights& weights, const Expected& expected,
                                    KernelSet kernels, Precision precision) {
  EngineOptions options;
  options.model = weights.config().model;
  options.kernels = kernels;
  options.compile.precision = precision;
  options.threads = 1;
  options.micro_batch = expected.samples;
  options.sequence_length = expected.tokens;
  options.validation_micro_batch = expected.samples;
  auto engine = std::make_unique<Engine>(options);
  engine->allocate();
  engine->initialise();
  initialise_from(*engine, weights, false);
  return engine;
}

// The largest difference of logits there can be, from the losses of every place with three labels each: a
// difference of losses is that of logits but for what all of a place have in common.
double difference(Engine& engine, const Expected& expected) {
  double largest = 0;
  for (int64_t place = 0; place < expected.samples * expected.tokens; ++place) {
    for (const int64_t step : {3, 17, 40}) {
      const auto label = static_cast<int32_t>((place * 7 + step) % expected.vocabulary);
      const double loss = engine.evaluate(expected.batch(place, label)).loss_sum;
      const double apart = std::abs(loss - expected.loss(place, label));
      if (!(apart <= largest)) largest = apart;  // a NaN stays
    }
  }
  return largest / expected.largest();
}

class HuggingFaceLogits : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFaceLogits, AreThoseOfTransformers) {
  const auto weights = HuggingFaceWeights::open(system_files(), fixture(GetParam()));
  const Expected expected(fixture(GetParam()));
  const auto exact = engine_with(weights, expected, KernelSet::reference, Precision::fp64);
  // transformers itself computes parts of Llama in fp32, nothing of GPT-2.
  const bool gpt2 = weights.config().model_type == "gpt2";
  EXPECT_LE(difference(*exact, expected), gpt2 ? 1e-13 : 1e-6);
  const auto fast = engine_with(weights, expected, KernelSet::cpu, Precision::fp32);
  EXPECT_LE(difference(*fast, expected), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFaceLogits,
                         testing::Values("gpt2", "gpt2_inner", "llama", "llama_tied", "mistral"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(HuggingFaceLogitsOf, MistralDependOnTheWindow) {
  const auto weights = HuggingFaceWeights::open(system_files(), fixture("mistral"));
  ASSERT_EQ(weights.config().model.window, 5);
  const Expected expected(fixture("mistral"));
  for (const int64_t window : {0, 4, 6}) {
    EngineOptions options;
    options.model = weights.config().model;
    options.model.window = window;
    options.threads = 1;
    options.micro_batch = options.validation_micro_batch = expected.samples;
    options.sequence_length = expected.tokens;
    Engine engine(options);
    engine.allocate();
    engine.initialise();
    initialise_from(engine, weights, false);
    EXPECT_GE(difference(engine, expected), 1e-3) << window;
  }
}

int64_t peak_resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long long kilobytes = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1) break;
  }
  std::fclose(file);
  return static_cast<int64_t>(kilobytes) * 1024;
}

TEST(HuggingFaceExchange, P130_OneTensorAtATimeIsInMemory) {
  const TemporaryFolder folder;
  FileEnvironment& files = system_files();
  ModelConfig model = family_defaults("llama");
  model.layers = 8;
  model.width = 512;
  model.heads = 8;
  model.feed_forward = 2048;
  model.vocabulary = 2048;
  files.make_directories(folder.path("in"));
  const std::vector<std::byte> zeros(size_t{1} << 16);
  std::vector<TensorProducer> producers;
  for (const ExchangedTensor& tensor : exchanged_tensors(model)) {
    TensorProducer producer{tensor.name, DType::fp32, tensor.shape, {}};
    const auto bytes = static_cast<size_t>(producer.bytes());
    producer.produce = [&zeros, bytes](const TensorProducer::Sink& sink) {
      for (size_t done = 0; done < bytes; done += zeros.size()) {
        sink(std::span(zeros).first(std::min(zeros.size(), bytes - done)));
      }
    };
    producers.push_back(std::move(producer));
  }
  const auto written = write_safetensors_shards(files, folder.path("in"), producers, {}, 50'000'000);
  ASSERT_GT(written.bytes, 128'000'000);
  write_file_atomically(files, folder.path("in/config.json"),
                        format_hugging_face_config(model, DType::fp32, {}));
  const int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  const auto weights = HuggingFaceWeights::open(files, folder.path("in"));
  CheckpointFolder checkpoints(files, folder.path("imported"), {});
  const SaveReport saved = import_weights(weights, checkpoints, {});
  const CheckpointWeights checkpoint(Checkpoint::open(files, saved.path));
  export_weights(files, checkpoint, model, folder.path("out"), {.dtype = DType::bf16});
  // The largest tensor has 4 MiB, buffers as much each.
  EXPECT_LT(peak_resident_bytes() - before, int64_t{24} << 20);
}

}  // namespace
}  // namespace athanor
