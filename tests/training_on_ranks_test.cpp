// The training loop on many ranks, each a thread: one run, whatever the layout.

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>

#include "athanor/base/error.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/comm/rank_threads.h"
#include "athanor/device/thread_team.h"
#include "athanor/machine/host.h"
#include "athanor/train/replica_check.h"
#include "support/rank_engines.h"
#include "support/training.h"

namespace athanor {
namespace {

struct Ranks {
  int32_t replica = 1, shard = 1, context = 1, tensor = 1, zero = 0;
  bool sequence_parallel = false;
};

RunOptions on(RunOptions options, const Ranks& ranks) {
  LayoutOptions& layout = options.compile.layout;
  layout.mesh.sizes = {1, ranks.replica, ranks.shard, ranks.context, ranks.tensor, 1, 1};
  layout.sequence_parallel = ranks.sequence_parallel;
  options.compile.zero_stage = ranks.zero;
  // The samples of a step stay; what a rank has at once follows.
  options.micro_batch = std::max<int64_t>(1, options.batch.batch / ranks.replica / ranks.shard / 2);
  return options;
}

class TrainingOnRanks : public testing::Test {
 protected:
  // fp64: what differs by more than rounding is wrong.
  RunOptions exact(const std::string& name, const std::string& family = "gpt2") {
    RunOptions options = runs.options(name, family);
    options.kernels = KernelSet::reference;
    options.compile.precision = Precision::fp64;
    options.schedule.kind = ScheduleKind::constant;
    options.batch.batch = 8;
    options.micro_batch = 4;
    options.steps = 4;
    options.model.dropout = 0.1;
    options.data.sequence_length = 15;  // does not divide
    options.data.validation_fraction = 0.1;
    options.validation = {.every = 2, .samples = 5};
    options.communication.check_every = 1;
    return options;
  }

  void expect_no_errors(const std::vector<std::string>& errors) {
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }

  static double number(const std::string& text) { return std::stod(text); }

  // Losses and gradient norms of all steps, to a relative tolerance.
  void expect_same_metrics(const RunOptions& expected, const RunOptions& actual, double tolerance) {
    for (const char* member :
         {"loss", "gradient_norm", "learning_rate", "consumed_samples", "valid_tokens"}) {
      const auto a = runs.metric(expected, member), b = runs.metric(actual, member);
      ASSERT_EQ(a.size(), b.size()) << member;
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(number(a[i]), number(b[i]), tolerance * std::abs(number(a[i])))
            << member << " of step " << i + 1;
      }
    }
  }

  static std::vector<double> doubles(const std::string& bytes) {
    std::vector<double> values(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Weights and moments of fp64 checkpoints.
  void expect_same_state(const RunOptions& expected, const RunOptions& actual, int64_t step,
                         double tolerance) {
    const auto a = runs.checkpoint(expected, step), b = runs.checkpoint(actual, step);
    ASSERT_EQ(a.size(), b.size());
    double largest = 0, difference = 0;
    for (const auto& [name, text] : a) {
      if (name.starts_with(".")) continue;
      if (name.ends_with("key.bias")) continue;  // its gradient is rounding alone
      const auto x = doubles(text), y = doubles(b.at(name));
      ASSERT_EQ(x.size(), y.size()) << name;
      for (size_t i = 0; i < x.size(); ++i) {
        largest = std::max(largest, std::abs(x[i]));
        difference = std::max(difference, std::abs(x[i] - y[i]));
      }
    }
    EXPECT_LE(difference, tolerance * largest);
    for (const char* name : {".progress", ".position"}) EXPECT_EQ(a.at(name), b.at(name));
  }

  TrainingRuns runs;
};

constexpr Ranks layouts[] = {{.shard = 2},
                             {.replica = 2, .shard = 2, .zero = 1},
                             {.shard = 2, .zero = 3},
                             {.tensor = 2},
                             {.context = 2},
                             {.shard = 2, .tensor = 2, .zero = 2, .sequence_parallel = true},
                             {.shard = 2, .context = 2, .tensor = 2, .zero = 3}};

// Rank 0 alone writes, and may take longer for it than a collective of a step may.
TEST_F(TrainingOnRanks, ASlowDiskKillsNobody) {
  FaultyFileEnvironment slow(system_files(), {.sync_delay = std::chrono::milliseconds(800)});
  TrainingRuns on_slow_disk(slow);
  RunOptions options = on(on_slow_disk.options("slow"), {.shard = 2});
  options.steps = 1;
  options.communication.timeout_seconds = 0.6;
  expect_no_errors(on_slow_disk.train_on_ranks(options));
  // It does not wait for ever, and says for what.
  options.name = "impatient";
  options.communication.patience_seconds = 0.6;
  const std::vector<std::string> errors = on_slow_disk.train_on_ranks(options);
  EXPECT_NE(errors[1].find("did not end within 0.6 s; missing: rank 0"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("phase: beginning"), std::string::npos) << errors[1];
}

TEST_F(TrainingOnRanks, EveryLayoutIsTheRunOfOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    const RunOptions one = exact(std::string(family) + "-one", family);
    runs.train(one);
    const std::string alone = runs.screen();
    int number = 0;
    for (const Ranks& ranks : layouts) {
      SCOPED_TRACE(fmt::format("{} layout {}", family, number));
      const RunOptions many = on(exact(fmt::format("{}-{}", family, number++), family), ranks);
      expect_no_errors(runs.train_on_ranks(many));
      expect_same_metrics(one, many, 1e-10);
      expect_same_state(one, many, 4, 1e-11);
      EXPECT_EQ(runs.screen().find("another rank speaks"), std::string::npos);
    }
  }
}

// As many positions as tokens: what a sequence is filled up with takes none.
TEST_F(TrainingOnRanks, TheLongestSequenceMayBeFilledUp) {
  RunOptions one = exact("one");
  one.model.maximum_positions = 15;
  one.steps = 2;
  runs.train(one);
  RunOptions many = on(one, {.context = 2, .tensor = 2, .sequence_parallel = true});
  many.name = "many";
  expect_no_errors(runs.train_on_ranks(many));
  expect_same_metrics(one, many, 1e-10);
  many.name = "longer";
  many.data.sequence_length = 16;
  for (const std::string& error : runs.train_on_ranks(many))
    EXPECT_NE(error.find("a sequence of 16 tokens is longer than model.maximum_positions 15"),
              std::string::npos)
        << error;
}

// Threads or processes: the same bits.
TEST_F(TrainingOnRanks, EveryTransportGivesTheSameBits) {
  int number = 0;
  for (const Ranks& ranks : {Ranks{.shard = 2, .tensor = 2, .zero = 2, .sequence_parallel = true},
                             Ranks{.shard = 2, .context = 2, .zero = 3}, Ranks{.replica = 3}}) {
    for (const auto& [precision, kernels] :
         {std::pair{Precision::fp32, KernelSet::reference}, std::pair{Precision::fp32, KernelSet::cpu},
          std::pair{Precision::bf16, KernelSet::cpu}, std::pair{Precision::fp16, KernelSet::cpu}}) {
      RunOptions threads = on(exact(fmt::format("threads-{}", number), "llama"), ranks);
      threads.batch.batch = 6;
      threads.micro_batch = 6 / ranks.replica / ranks.shard;
      threads.compile.precision = precision;
      threads.kernels = kernels;
      threads.steps = 2;
      RunOptions processes = threads;
      processes.name = fmt::format("processes-{}", number++);
      expect_no_errors(runs.train_on_processes(processes));
      expect_no_errors(runs.train_on_ranks(threads));
      EXPECT_EQ(runs.metrics(threads), runs.metrics(processes));
      EXPECT_EQ(differences(runs.checkpoint(threads, 2), runs.checkpoint(processes, 2)), "");
    }
  }
}

// One rank reports, writes and draws.
TEST_F(TrainingOnRanks, OneRankSpeaksForAll) {
  RunOptions many = on(exact("a"), {.shard = 2});
  many.sample.length = 5;
  expect_no_errors(runs.train_on_ranks(many));
  EXPECT_EQ(runs.metrics(many).size(), 4U);
  EXPECT_EQ(runs.screen().find("another rank speaks"), std::string::npos) << runs.screen();
  EXPECT_NE(runs.screen().find("; 2 ranks"), std::string::npos) << runs.screen();
  EXPECT_NE(runs.screen().find("the model writes:"), std::string::npos) << runs.screen();
  EXPECT_EQ(runs.checkpoints(many), std::vector<int64_t>{4});
  for (const char* file : {"loss.svg", "config.toml", "tokenizer.json"})
    EXPECT_TRUE(system_files().exists(runs.path(many, file))) << file;
}

// Dropout on: masks belong to samples and places, so a run that goes on draws on where it was, on every rank.
TEST_F(TrainingOnRanks, P70_GoingOnIsTheUninterruptedRunToTheBit) {
  for (const Ranks& ranks :
       {Ranks{.shard = 2, .zero = 2}, Ranks{.shard = 2, .context = 2}, Ranks{.tensor = 3}}) {
    const std::string name = fmt::format("{}{}{}", ranks.shard, ranks.context, ranks.tensor);
    const RunOptions whole = on(exact("whole" + name), ranks);
    expect_no_errors(runs.train_on_ranks(whole));
    RunOptions broken = on(exact("broken" + name), ranks);
    broken.steps = 2;
    expect_no_errors(runs.train_on_ranks(broken));
    broken.steps = 4;
    broken.resume = true;
    expect_no_errors(runs.train_on_ranks(broken));
    EXPECT_EQ(runs.metrics(whole), runs.metrics(broken));
    EXPECT_EQ(differences(runs.checkpoint(whole, 4), runs.checkpoint(broken, 4)), "");
  }
}

// The position is one counter, the state one file: a run goes on with other ranks, and with as many as it
// likes.
TEST_F(TrainingOnRanks, P58_P59_ARunGoesOnInAnotherLayout) {
  const RunOptions whole = exact("whole");
  runs.train(whole);
  RunOptions changing = exact("changing");
  int64_t steps = 0;
  for (const Ranks& ranks : {Ranks{.shard = 4, .zero = 1}, Ranks{.context = 2, .tensor = 2},
                             Ranks{.shard = 2, .zero = 3}, Ranks{}}) {
    RunOptions next = on(changing, ranks);
    next.steps = ++steps;
    next.resume = steps > 1;
    next.checkpoint.keep = 10;
    expect_no_errors(runs.train_on_ranks(next));
  }
  expect_same_metrics(whole, changing, 1e-10);
  expect_same_state(whole, changing, 4, 1e-11);
  // Five ranks do not divide eight samples.
  RunOptions odd = on(changing, {.shard = 5});
  odd.resume = true;
  for (const std::string& error : runs.train_on_ranks(odd))
    EXPECT_NE(error.find("train.batch 8 is not a multiple of 5 samples"), std::string::npos) << error;
}

// The initial weights are keyed by name and element: what is saved after no update is one file in all
// layouts.
TEST_F(TrainingOnRanks, P132_InitialWeightsDoNotDependOnTheLayout) {
  RunOptions one = exact("one", "llama");
  one.schedule.rate = 0;
  one.compile.optimizer.weight_decay = 0;
  one.steps = 1;
  runs.train(one);
  const auto expected = runs.checkpoint(one, 1);
  int number = 0;
  for (const Ranks& ranks : layouts) {
    RunOptions many = on(one, ranks);
    many.name = fmt::format("many-{}", number++);
    expect_no_errors(runs.train_on_ranks(many));
    const auto actual = runs.checkpoint(many, 1);
    for (const auto& [name, bytes] : expected) {
      if (name.starts_with(".") || name.find("moment") != std::string::npos) continue;
      EXPECT_TRUE(bytes == actual.at(name)) << name << " in layout " << number - 1;
    }
  }
}

// One rank is asked; all stop after the same step, and the run goes on as if nothing had been.
TEST_F(TrainingOnRanks, ASignalToOneRankStopsAll) {
  RunOptions whole = exact("whole");
  whole.steps = 4;
  runs.train(whole);
  for (const int asked : {0, 1}) {
    RunOptions many = on(exact(fmt::format("asked-{}", asked)), {.shard = 2, .zero = 2});
    expect_no_errors(runs.train_on_ranks(many, [&](int rank, RunOptions& options, TrainContext& context) {
      context.signals = rank == asked;
      if (rank == asked) options.wall_time_seconds = 1e-9;  // is over at once
    }));
    EXPECT_NE(runs.screen().find("at step 0 of 4"), std::string::npos) << runs.screen();
    EXPECT_EQ(runs.checkpoints(many), std::vector<int64_t>{});
    many.resume = true;
    expect_no_errors(runs.train_on_ranks(many));
    expect_same_metrics(whole, many, 1e-10);
  }
}

TEST_F(TrainingOnRanks, ASaveIsMadeByAllWhenOneIsAsked) {
  RunOptions many = on(exact("a"), {.tensor = 2});
  many.steps = 30;
  many.checkpoint.keep = 100;
  expect_no_errors(runs.train_on_ranks(many, [&](int rank, RunOptions&, TrainContext& context) {
    context.signals = rank == 1;
    if (rank == 1) {
      context.initial_weights = {};
      std::thread([&many, this] {
        while (!system_files().exists(runs.path(many, "metrics.jsonl")))
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        raise(SIGUSR1);
      }).detach();
    }
  }));
  EXPECT_EQ(runs.checkpoints(many).size(), 2U);
}

// What one rank cannot do ends all of them, with its reason.
TEST_F(TrainingOnRanks, AnErrorOfOneRankEndsAll) {
  const RunOptions many = on(exact("a"), {.shard = 3});
  RunOptions other = many;
  other.batch.batch = 9;
  const auto errors = runs.train_on_ranks(other, [&](int rank, RunOptions& options, TrainContext&) {
    if (rank == 2) options.data.train = runs.folder().path("missing.txt");
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("missing.txt"), std::string::npos) << error;
  EXPECT_NE(errors[0].find("rank 2"), std::string::npos) << errors[0];
}

// They may be one step apart.
TEST_F(TrainingOnRanks, WhoOutlivesAnotherSaysWhichWeightsItHas) {
  const RunOptions many = on(exact("a"), {.shard = 2});
  const std::string blocked = runs.folder().path("blocked");
  write_file_atomically(system_files(), blocked, "no folder");
  const auto errors = runs.train_on_ranks(many, [&](int rank, RunOptions& options, TrainContext&) {
    if (rank != 1) return;
    options.folder = blocked;
    options.dump = {{"loss"}, 3};
  });
  for (const std::string& error : errors) EXPECT_NE(error.find(blocked), std::string::npos) << error;
  const std::string log = runs.text(many, "logs/run.log");
  EXPECT_NE(log.find("this rank has the weights of step 3"), std::string::npos) << log;
}

TEST_F(TrainingOnRanks, OptionsAndDataMustBeTheSame) {
  const RunOptions many = on(exact("a"), {.tensor = 2});
  for (const std::string& error : runs.train_on_ranks(many, [](int rank, RunOptions&, TrainContext& context) {
         if (rank == 1) context.configuration = "# another\n";
       })) {
    EXPECT_NE(error.find("rank 1 has other options than rank 0:\n  # another instead of # configuration"),
              std::string::npos)
        << error;
  }
  write_file_atomically(system_files(), runs.folder().path("other.txt"),
                        read_file(system_files(), runs.folder().path("text.txt"), 1 << 20) + "more\n");
  for (const std::string& error :
       runs.train_on_ranks(many, [&](int rank, RunOptions& options, TrainContext&) {
         if (rank == 1) options.data.train = runs.folder().path("other.txt");
       })) {
    EXPECT_NE(error.find("rank 1 has other training data than rank 0"), std::string::npos) << error;
  }
  RunOptions of_four = many;
  of_four.compile.layout.mesh.sizes[static_cast<size_t>(Axis::shard)] = 2;
  for (const std::string& error :
       runs.train_on_ranks(many, [&](int, RunOptions& options, TrainContext&) { options = of_four; })) {
    EXPECT_NE(error.find("the job has 2 ranks and the mesh 4"), std::string::npos) << error;
  }
}

// All ranks find the same, or are told: none waits for another that has stopped.
TEST_F(TrainingOnRanks, ANumberThatIsNotFiniteStopsAllWithOneReport) {
  RunOptions many = on(exact("a"), {.shard = 2, .tensor = 2, .zero = 1});
  many.schedule.rate = 1e300;
  many.compile.optimizer.maximum_norm = 0;
  const auto errors = runs.train_on_ranks(many);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("the first tensor with it is"), std::string::npos) << error;
    EXPECT_EQ(error, errors[0]);
  }
}

// The loop compares: a rank that began with other weights is found after the first step that says so, and
// nothing is saved.
TEST_F(TrainingOnRanks, P24_TheLoopComparesWeights) {
  RunOptions many = on(exact("a"), {.replica = 3});
  many.batch.batch = 6;
  many.micro_batch = 2;
  many.communication.check_every = 4;
  const auto other_seed = [](int rank, RunOptions& options, TrainContext&) {
    if (rank == 1) options.model.initial_deviation *= 1.001;
  };
  for (const std::string& error : runs.train_on_ranks(many, other_seed)) {
    EXPECT_NE(error.find("step 4: ranks that must hold the same weights do not"), std::string::npos) << error;
    EXPECT_NE(error.find("on rank 1 (of ranks 0, 1, 2)"), std::string::npos) << error;
  }
  EXPECT_EQ(runs.checkpoints(many), std::vector<int64_t>{});
}

// A bit of one copy of a weight turns: the check names tensor and rank.
TEST(ReplicaCheck, P24_CopiesThatPartAreFoundAndNamed) {
  std::vector<std::byte> memory(4 * 64, std::byte{7});
  const auto errors = run_rank_threads(4, [&](Communicator& communicator) {
    RankMessages messages(&communicator);
    const auto rank = static_cast<size_t>(communicator.rank());
    const auto own = std::span(memory).subspan(rank * 64, 64);
    // The first on all ranks, the second cut in two with two copies each.
    const int64_t half = communicator.rank() / 2;
    const std::vector<NamedTensor> state{{"first", DType::fp32, {8}, own.first(32), {{0, 0, 8}}},
                                         {"second", DType::fp32, {16}, own.last(32), {{0, 8 * half, 8}}},
                                         {"elsewhere", DType::fp32, {8}, {}, {}}};
    check_replicas(messages, state, 4);
    messages.wait_for_all();
    if (rank == 2) own[5] ^= std::byte{16};
    messages.wait_for_all();
    check_replicas(messages, state, 5);
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error,
              "step 5: ranks that must hold the same weights do not: first on rank 2 (of ranks 0, 1, 2, 3)");
}

// Of two copies nobody knows which is right.
TEST(ReplicaCheck, P24_TwoCopiesAreNamedBoth) {
  for (const std::string& error : run_rank_threads(2, [&](Communicator& communicator) {
         RankMessages messages(&communicator);
         std::array<std::byte, 32> own{static_cast<std::byte>(communicator.rank())};
         const std::vector<NamedTensor> state{{"w", DType::fp32, {8}, own, {{0, 0, 8}}}};
         check_replicas(messages, state, 2);
       })) {
    EXPECT_EQ(error, "step 2: ranks that must hold the same weights do not: w between ranks 0, 1");
  }
}

// One rank would find room, and so would the other one.
TEST(MemoryOfAHost, IsThatOfAllItsRanks) {
  EngineOptions options = tiny_engine(Precision::fp32, 8);
  options.micro_batch = 2;
  options.sequence_length = 8;
  options.compile.layout.mesh = mesh_of(Axis::replica, 2);
  options.model.width = 256;
  options.model.vocabulary = 1'000'000;
  // Nearly all of it are rows of the vocabulary.
  options.model.vocabulary = static_cast<int64_t>(1e6 * 0.75 * static_cast<double>(available_memory_bytes()) /
                                                  static_cast<double>(Engine(options).planned_bytes()));
  const auto errors = run_rank_threads(2, [&](Communicator& communicator) {
    EngineOptions own = options;
    own.communicator = &communicator;
    Engine(own).allocate();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("the run needs for 2 ranks on this host each "), std::string::npos) << error;
}

TEST(ThreadsOfARank, ThousandsAreASlip) {
  EngineOptions options = tiny_engine(Precision::fp32, 8);
  options.threads = 64 * available_cores();
  EXPECT_THROW(Engine{options}, Error);
}

}  // namespace
}  // namespace athanor
