#include "athanor/train/run_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

TEST(RunProgress, TextReadsBack) {
  const RunProgress progress{12, 10, int64_t{1} << 40, int64_t{1} << 52, int64_t{1} << 41};
  EXPECT_EQ(parse_run_progress(to_text(progress)), progress);
  EXPECT_EQ(parse_run_progress(to_text(RunProgress{})), RunProgress{});
  // Begun with the optimizer's state of another run; without one the text is that of earlier versions.
  RunProgress continued = progress;
  continued.earlier_updates = 7;
  EXPECT_EQ(parse_run_progress(to_text(continued)), continued);
  EXPECT_EQ(to_text(continued), to_text(progress) + "earlier_updates 7\n");
}

TEST(RunProgress, OtherTextIsRefused) {
  const std::string good = to_text(RunProgress{3, 2, 12, 48});
  EXPECT_NO_THROW(parse_run_progress(good));
  EXPECT_THROW(parse_run_progress(""), Error);
  EXPECT_THROW(parse_run_progress(good + "x"), Error);
  EXPECT_THROW(parse_run_progress(good.substr(1)), Error);
  EXPECT_THROW(parse_run_progress(good.substr(0, good.size() - 2)), Error);
  EXPECT_THROW(parse_run_progress(to_text(RunProgress{-3, -3, 12, 48})), Error);
  EXPECT_THROW(parse_run_progress(to_text(RunProgress{3, 4, 12, 48})), Error);  // more updates than steps
  EXPECT_THROW(parse_run_progress(to_text(RunProgress{3, 2, -1, 48})), Error);
  EXPECT_THROW(parse_run_progress("step 99999999999999999999\n"), Error);
  for (const char* more :
       {"earlier_updates", "earlier_updates 0\n", "earlier_updates -1\n", "updates 7\n",
        "earlier_updates 7\nearlier_updates 7\n", "earlier_updates 99999999999999999999\n"}) {
    EXPECT_THROW(parse_run_progress(good + more), Error) << more;
  }
}

class RunStateTest : public testing::TestWithParam<Precision> {
 protected:
  RunStateTest() {
    options_ = tiny_options("llama");
    options_.compile.precision = GetParam();
    options_.compile.optimizer.average_decay = 0.9;
    options_.kernels = GetParam() == Precision::fp64 ? KernelSet::reference : KernelSet::cpu;
    engine_ = make_engine(options_);
    for (int64_t step = 0; step < 3; ++step) train(*engine_, step);
  }
  StepResult train(Engine& engine, int64_t step) {
    const Batch batch = tiny_batch(options_, step);
    return engine.train_step({&batch, 1}, step, step, 1e-2);
  }
  SavedRun run_at(int64_t step) {
    DataPosition position;
    position.consumed_samples = 2 * step;
    return {{step, step, 2 * step, 16 * step}, position, "configuration", "spikes"};
  }
  std::string refusal(const Checkpoint& checkpoint, Engine& engine) {
    try {
      load_run(checkpoint, engine);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      return error.what();
    }
    return "";
  }
  void poison(const std::string& name, double value) {
    const NamedTensor tensor = named(engine_->state(), name);
    if (tensor.dtype == DType::fp64) {
      reinterpret_cast<double*>(tensor.bytes.data())[5] = value;
    } else {
      floats(tensor)[5] = static_cast<float>(value);
    }
  }

  TemporaryFolder scratch_;
  CheckpointFolder folder_{system_files(), scratch_.path("checkpoints"), {}};
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

// Weights, both moments, averages; and the working copies made from the master weights, which a step shows.
TEST_P(RunStateTest, EverythingComesBack_P69_AndTheNextStepsAreTheSame) {
  EXPECT_EQ(engine_->state().size(), 4 * engine_->weights().size());
  save_run(folder_, *engine_, run_at(3));
  EngineOptions others = options_;
  others.seed = 99;
  const auto loaded = make_engine(others);
  ASSERT_NE(changed(bytes_of(loaded->state()), bytes_of(engine_->state())), "");
  const Checkpoint checkpoint = Checkpoint::open(system_files(), folder_.path_of(3));
  const SavedRun saved = load_run(checkpoint, *loaded);
  EXPECT_EQ(saved.progress, run_at(3).progress);
  EXPECT_EQ(saved.position, run_at(3).position);
  EXPECT_EQ(saved.configuration, "configuration");
  EXPECT_EQ(saved.spikes, "spikes");
  EXPECT_EQ(changed(bytes_of(engine_->state()), bytes_of(loaded->state())), "");
  for (int64_t step = 3; step < 6; ++step) {
    const StepResult original = train(*engine_, step), resumed = train(*loaded, step);
    EXPECT_EQ(original.loss, resumed.loss);
    EXPECT_EQ(original.gradient_norm, resumed.gradient_norm);
  }
  EXPECT_EQ(changed(bytes_of(engine_->state()), bytes_of(loaded->state())), "");
}

TEST_P(RunStateTest, ValuesThatAreNotFinite_P103_AreNeitherSavedNorLoaded) {
  save_run(folder_, *engine_, run_at(3));
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    for (const char* name : {"block.1.mlp.down.weight", "second_moment.embedding.token.weight"}) {
      const auto good = bytes_of(engine_->state());
      poison(name, bad);
      try {
        save_run(folder_, *engine_, run_at(4));
        ADD_FAILURE() << name;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::stop_job);
        EXPECT_NE(error.message().find(fmt::format(
                      "step 4: the update gave a value that is not finite in {} (element 5)", name)),
                  std::string::npos)
            << error.what();
      }
      EXPECT_EQ(folder_.steps(), std::vector<int64_t>{3});
      // One that somebody else wrote, with right sums.
      std::vector<TensorBytes> tensors;
      for (const NamedTensor& tensor : engine_->state()) {
        std::vector<int64_t> shape;
        for (int dim = 0; dim < tensor.shape.rank(); ++dim) shape.push_back(tensor.shape[dim]);
        tensors.push_back({tensor.name, tensor.dtype, shape, tensor.bytes});
      }
      CheckpointFolder other(system_files(), scratch_.path(fmt::format("{}{}", name, bad)), {});
      const SavedRun run = run_at(5);
      other.save(5, tensors,
                 {{"progress", to_text(run.progress)},
                  {"position", to_text(run.position)},
                  {"configuration", ""},
                  {"spikes", ""}});
      const std::string message =
          refusal(Checkpoint::open(system_files(), other.path_of(5)), *make_engine(options_));
      EXPECT_NE(message.find("step_00000005"), std::string::npos) << message;
      EXPECT_NE(message.find(name), std::string::npos) << message;
      for (const NamedTensor& tensor : engine_->state()) {
        std::copy(good.at(tensor.name).begin(), good.at(tensor.name).end(), tensor.bytes.begin());
      }
    }
  }
}

TEST_P(RunStateTest, OtherTensorsAreRefusedAndNothingIsChanged) {
  save_run(folder_, *engine_, run_at(3));
  const Checkpoint checkpoint = Checkpoint::open(system_files(), folder_.path_of(3));
  EngineOptions options = options_;
  options.compile.optimizer.average_decay = 0;
  auto other = make_engine(options);
  auto before = bytes_of(other->state());
  EXPECT_NE(refusal(checkpoint, *other).find("average.embedding.token.weight"), std::string::npos);
  EXPECT_EQ(changed(before, bytes_of(other->state())), "");
  options = options_;
  options.model.layers = 1;
  options.model.feed_forward = 20;
  other = make_engine(options);
  before = bytes_of(other->state());
  const std::string message = refusal(checkpoint, *other);
  EXPECT_NE(message.find("block.1.mlp.up.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("block.0.mlp.up.weight (file [24,16], here [20,16])"), std::string::npos) << message;
  EXPECT_EQ(changed(before, bytes_of(other->state())), "");
}

TEST_P(RunStateTest, ACheckpointOfAnotherKindIsRefused) {
  folder_.save(1, {}, {{"progress", to_text(RunProgress{1, 1, 2, 16})}});
  EXPECT_NE(refusal(Checkpoint::open(system_files(), folder_.path_of(1)), *engine_).find("position"),
            std::string::npos);
  SavedRun mixed = run_at(4);
  mixed.position.consumed_samples = 6;
  save_run(folder_, *engine_, mixed);
  const std::string message = refusal(Checkpoint::open(system_files(), folder_.path_of(4)), *engine_);
  EXPECT_NE(message.find("after 8 samples, its position after 6"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Precisions, RunStateTest,
                         testing::Values(Precision::fp64, Precision::fp32, Precision::bf16),
                         [](const auto& parameter) {
                           return std::string(parameter.param == Precision::fp64   ? "fp64"
                                              : parameter.param == Precision::fp32 ? "fp32"
                                                                                   : "bf16");
                         });

}  // namespace
}  // namespace athanor
