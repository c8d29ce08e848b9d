// A rank is lost in the middle of a training step: the others end at once, and each holds the weights of one
// step, the one before or the one after its commit point, never some buckets of one and some of the other.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <new>

#include "athanor/base/philox.h"
#include "athanor/comm/interrupted_transport.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/comm/rank_threads.h"
#include "support/rank_engines.h"

namespace athanor {
namespace {

RunPlan tiny_plan(Precision precision, OptimizerKind optimizer = OptimizerKind::adamw) {
  RunPlan plan;
  plan.engine = tiny_engine(precision, 8);
  plan.engine.compile.optimizer.kind = optimizer;
  plan.micro_batches = 1;
  return plan;
}

RunPlan on(RunPlan plan, int32_t replica, int32_t shard, int32_t tensor, int32_t zero) {
  plan.engine.compile.layout.mesh.sizes = {1, replica, shard, 1, tensor, 1, 1};
  plan.engine.compile.zero_stage = zero;
  plan.engine.micro_batch = plan.samples / replica / shard;
  plan.engine.sequence_length = plan.sequence_length;
  return plan;
}

int ranks_of(const RunPlan& plan) {
  return static_cast<int>(plan.engine.compile.layout.mesh.ranks());
}

// One rank of the plan.
class RankEngine {
 public:
  RankEngine(const RunPlan& plan, Communicator& communicator)
      : plan_(plan), engine_(options(plan, communicator)) {
    coordinates_ = coordinates_of(plan.engine.compile.layout.mesh, communicator.rank());
    engine_.allocate();
    engine_.initialise();
  }
  void step(int64_t number, const std::function<void(const Observation&)>& observe = {}) {
    const std::vector<Batch> batches{batch_of_rank(plan_, number, coordinates_)};
    if (observe)
      engine_.observed_step(batches, number, number, 1e-2, observe);
    else
      engine_.train_step(batches, number, number, 1e-2);
  }
  bool committed() const { return engine_.committed(); }
  // Of weights and optimizer state.
  uint64_t digest() {
    uint64_t hash = 0;
    for (const NamedTensor& tensor : engine_.state())
      for (const std::byte byte : tensor.bytes) hash = mix64(hash ^ static_cast<uint64_t>(byte)) + 1;
    return hash;
  }

 private:
  static EngineOptions options(const RunPlan& plan, Communicator& communicator) {
    EngineOptions options = plan.engine;
    options.communicator = &communicator;
    return options;
  }
  const RunPlan& plan_;
  Engine engine_;
  Coordinates coordinates_{};
};

// What a rank of an undisturbed run has: digests after so many steps, and of the operations of its second
// step the last one before the sums over ranks that the commit point needs, the commit point, and how many
// there are.
struct Undisturbed {
  std::array<uint64_t, 3> digest{};
  int64_t last_computed = 0, commit = 0, operations = 0;
};

std::vector<Undisturbed> undisturbed(const RunPlan& plan) {
  std::vector<Undisturbed> ranks(static_cast<size_t>(ranks_of(plan)));
  const auto errors = run_rank_threads(ranks_of(plan), [&](Communicator& communicator) {
    Undisturbed& own = ranks[static_cast<size_t>(communicator.rank())];
    RankEngine rank(plan, communicator);
    for (size_t step = 0; step < 2; ++step) {
      own.digest[step] = rank.digest();
      rank.step(static_cast<int64_t>(step), [&](const Observation& seen) {
        if (step < 1) return;
        if (seen.operation->kind == OperationKind::clip) own.commit = own.operations;
        if (own.commit == 0 && !row_of(seen.operation->kind).is_collective)
          own.last_computed = own.operations;
        ++own.operations;
      });
    }
    own.digest[2] = rank.digest();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return ranks;
}

// The last rank leaves the second step after `operation`; the others are run or watched.
void expect_whole_updates(const RunPlan& plan, const std::vector<Undisturbed>& expected, int64_t operation,
                          bool watched) {
  const int lost = ranks_of(plan) - 1;
  run_rank_threads(ranks_of(plan), [&](Communicator& communicator) {
    const int number = communicator.rank();
    const Undisturbed& own = expected[static_cast<size_t>(number)];
    RankEngine rank(plan, communicator);
    rank.step(0);
    int64_t passed = 0;
    const auto leave = [&](const Observation&) {
      if (passed++ == operation && number == lost) throw_user_error("lost");
    };
    try {
      rank.step(1, number == lost || watched ? leave : std::function<void(const Observation&)>());
    } catch (const Error&) {
      if (number == lost) throw;
    }
    const uint64_t digest = rank.digest();
    EXPECT_EQ(digest, own.digest[rank.committed() ? 2 : 1])
        << "rank " << number << " says it has the weights of step " << (rank.committed() ? 2 : 1);
    if (operation <= own.last_computed) {
      EXPECT_EQ(digest, own.digest[1]) << "rank " << number;
    }
  });
}

TEST(LostRank, P97_OthersHoldTheWeightsOfOneStep) {
  constexpr auto fp32 = Precision::fp32, bf16 = Precision::bf16;
  const std::vector<RunPlan> plans = {
      on(tiny_plan(fp32), 1, 2, 1, 1),
      on(tiny_plan(bf16), 1, 2, 1, 2),
      on(tiny_plan(fp32, OptimizerKind::lamb), 1, 2, 1, 1),
      on(tiny_plan(fp32), 1, 2, 2, 3),
  };
  for (const RunPlan& plan : plans) {
    const std::vector<Undisturbed> expected = undisturbed(plan);
    const Undisturbed& lost = expected.back();
    ASSERT_GT(lost.last_computed, 0);
    ASSERT_GT(lost.commit, lost.last_computed + 1);
    EXPECT_GT(lost.operations, lost.commit + 3);
    // From before the last sums over ranks to the last operation.
    for (int64_t operation = lost.last_computed; operation < lost.operations; ++operation) {
      SCOPED_TRACE(fmt::format("zero {}, operation {} of {}, commit {}", plan.engine.compile.zero_stage,
                               operation, lost.operations, lost.commit));
      expect_whole_updates(plan, expected, operation, true);
      if (plan.engine.compile.zero_stage == 2) expect_whole_updates(plan, expected, operation, false);
      if (HasFailure()) return;  // each may have waited for a deadline
    }
  }
}

// What processes tell the test.
struct Shared {
  static constexpr int ranks = 4, steps = 6;
  std::array<std::array<std::atomic<uint64_t>, steps + 1>, ranks> digest{};  // after so many steps
  std::array<std::array<std::atomic<int64_t>, steps + 1>, ranks> moments{};
};

class SharedMemory {
 public:
  SharedMemory()
      : shared_(new(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                    Shared) {}
  ~SharedMemory() { munmap(shared_, sizeof(Shared)); }
  SharedMemory(const SharedMemory&) = delete;
  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

// A training run of four processes, of which one is struck at one of the moments of its transport.
class ProcessRun {
 public:
  ProcessRun(const RunPlan& plan, const SharedMemory& undisturbed, int lost, int64_t moment, int signal)
      : undisturbed_(undisturbed),
        lost_(lost),
        ranks_(
            Shared::ranks,
            [&](int, HostTransportOptions& transport, CommunicatorOptions&) {
              if (signal == SIGSTOP) transport.silence_ns = 1'000'000'000;
            },
            [this, plan, moment, signal](int rank, Communicator& communicator, Meeting& meeting) {
              if (rank == lost_) {
                moments_.strike_at = moment;
                moments_.strike = [&meeting, signal] {
                  meeting.struck_ns = monotonic_ns();
                  raise(signal);
                };
              }
              train(plan, rank, communicator, meeting);
            },
            [this](int, std::unique_ptr<Transport> transport) -> std::unique_ptr<Transport> {
              return std::make_unique<InterruptedTransport>(std::move(transport), moments_);
            }) {}

  void expect_no_errors() {
    for (int rank = 0; rank < Shared::ranks; ++rank) EXPECT_EQ(ranks_.wait_for(rank), "");
  }

  void expect_survivors() {
    Meeting& meeting = ranks_.meeting();
    for (int rank = 0; rank < Shared::ranks; ++rank) {
      if (rank == lost_) continue;
      const auto at = static_cast<size_t>(rank);
      const std::string message = ranks_.wait_for(rank, 60);
      EXPECT_NE(message.find(fmt::format("rank {} (process ", lost_)), std::string::npos) << message;
      EXPECT_NE(message.find(" of group '"), std::string::npos) << message;
      EXPECT_LT(seconds_of(meeting.failed_ns[at] - meeting.struck_ns), 20) << message;
      EXPECT_STREQ(meeting.left_behind[at].data(), "");
      const auto done = static_cast<size_t>(meeting.progress[at]);
      ASSERT_LE(done, Shared::steps);
      EXPECT_EQ(meeting.value[at], undisturbed_->digest[at][done])
          << "rank " << rank << " says it has the weights of step " << done;
    }
  }

 private:
  void train(const RunPlan& plan, int rank, Communicator& communicator, Meeting& meeting) {
    const auto at = static_cast<size_t>(rank);
    RankEngine engine(plan, communicator);
    const auto note = [&](int64_t step) {
      if (lost_ >= 0) return;
      undisturbed_->digest[at][static_cast<size_t>(step)] = engine.digest();
      undisturbed_->moments[at][static_cast<size_t>(step)] = moments_.passed;
    };
    try {
      note(0);
      for (int64_t step = 0; step < Shared::steps; ++step) {
        engine.step(step);
        note(step + 1);
        ++meeting.progress[at];
      }
    } catch (const Error&) {
      if (engine.committed()) ++meeting.progress[at];
      meeting.value[at] = engine.digest();
      throw;
    }
  }

  const SharedMemory& undisturbed_;
  const int lost_;
  Moments moments_;  // each process has its own
  ProcessRanks ranks_;
};

// At moments drawn from steps 2 to 5, on any rank.
TEST(LostRank, P97_AProcessLostInAStepEndsTheOthersWithTheWeightsOfOneStep) {
  for (const int32_t zero : {3, 1}) {
    const RunPlan plan = on(tiny_plan(Precision::bf16), 1, 2, 2, zero);
    const SharedMemory undisturbed;
    ProcessRun(plan, undisturbed, -1, -1, 0).expect_no_errors();
    uint64_t draw = static_cast<uint64_t>(zero);
    for (const int signal : {SIGKILL, SIGKILL, SIGSTOP}) {
      std::vector<std::unique_ptr<ProcessRun>> runs;
      for (int i = 0; i < 6; ++i) {
        draw = mix64(draw + 1);
        const auto lost = static_cast<size_t>(draw % Shared::ranks);
        const int64_t first = undisturbed->moments[lost][1], last = undisturbed->moments[lost][5];
        ASSERT_GT(last, first);
        const int64_t moment =
            first + static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(last - first));
        runs.push_back(
            std::make_unique<ProcessRun>(plan, undisturbed, static_cast<int>(lost), moment, signal));
      }
      for (const auto& run : runs) run->expect_survivors();
    }
  }
}

}  // namespace
}  // namespace athanor
