#include "athanor/comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/comm/algorithm.h"
#include "athanor/comm/interpreter.h"
#include "athanor/comm/wait_report.h"

namespace athanor {
namespace {

constexpr int64_t answer_time_ns = 1'000'000'000;  // for peers asked how far they are

bool is_pairwise(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

// Of what all members must agree on. Counts of an all_to_all differ; its messages say how long they are.
uint32_t signature_of(const CollectiveSpec& spec, Algorithm algorithm) {
  const CollectiveKind kind =
      spec.kind == CollectiveKind::receive ? CollectiveKind::send : spec.kind;  // one message, two ends
  uint64_t hash = mix64(static_cast<uint64_t>(kind) + 1);
  const auto add = [&](uint64_t value) { hash = mix64(hash ^ value) + 0x9E3779B97F4A7C15u; };
  add(static_cast<uint64_t>(spec.wire));
  if (is_pairwise(spec.kind)) return static_cast<uint32_t>(hash >> 32);
  add(static_cast<uint64_t>(spec.dtype));
  add(static_cast<uint64_t>(algorithm));
  if (has_reduction(spec.kind)) add(static_cast<uint64_t>(spec.reduction));
  if (spec.kind == CollectiveKind::broadcast) add(static_cast<uint64_t>(spec.root));
  if (spec.kind != CollectiveKind::all_to_all)
    for (const int64_t count : spec.counts) add(static_cast<uint64_t>(count));
  return static_cast<uint32_t>(hash >> 32);
}

struct GroupState {
  Group group;
  GroupShape shape;
  int member = 0;
  uint64_t sequence = 0;                 // collectives begun
  std::vector<uint64_t> sent, received;  // messages begun with each member
};

class StepCommunicator;

struct StepCollective final : PreparedCollective {
  Algorithm algorithm() const override { return plan.algorithm; }
  StepCommunicator* communicator = nullptr;
  GroupState* group = nullptr;
  Collective collective;  // counts as asked for: upper bounds where they are read at run time
  CollectiveSpec spec;    // counts of the plan
  Plan plan;
  uint32_t signature = 0;
  std::shared_ptr<std::byte> scratch;
  int64_t scratch_bytes = 0;
};

// How far a run has come, for those who must report on it.
struct Running {
  IssuedCollective issued;
  const StepCollective* collective = nullptr;
  int64_t begin_ns = 0;
};

class StepCommunicator final : public Communicator {
 public:
  StepCommunicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
      : transport_(std::move(transport)), options_(std::move(options)), interpreter_(*transport_) {
    ATHANOR_ASSERT(options_.hosts.empty() || options_.hosts.size() == static_cast<size_t>(ranks()),
                   "hosts of {} ranks", options_.hosts.size());
  }

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  int ranks_on_host() const override {
    const std::vector<int>& hosts = options_.hosts;
    if (hosts.empty()) return ranks();
    return static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank())]));
  }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return transport_->allocate(bytes); }
  void set_phase(std::string_view phase) override { transport_->board().set_phase(phase); }

  void add_group(Group group) override {
    GroupState state;
    const auto own = std::find(group.ranks.begin(), group.ranks.end(), rank());
    if (own == group.ranks.end())
      throw_user_error(fmt::format("rank {} is not in group '{}'", rank(), group.name));
    for (const int each : group.ranks)
      if (each < 0 || each >= ranks() || std::count(group.ranks.begin(), group.ranks.end(), each) != 1)
        throw_user_error(fmt::format("group '{}' has rank {}", group.name, each));
    state.member = static_cast<int>(own - group.ranks.begin());
    for (const int each : group.ranks)
      state.shape.hosts.push_back(options_.hosts.empty() ? 0 : options_.hosts[static_cast<size_t>(each)]);
    state.sent.resize(group.ranks.size());
    state.received.resize(group.ranks.size());
    const GroupId id = group.id;
    names_.emplace(id, group.name);
    state.group = std::move(group);
    const std::vector<int> ranks = state.group.ranks;
    const auto [known, added] = groups_.emplace(id, std::move(state));
    if (!added && known->second.group.ranks != ranks)
      throw_user_error(fmt::format("two groups with number {}", id));
  }

  std::unique_ptr<PreparedCollective> prepare(const Collective& collective) override {
    const auto found = groups_.find(collective.group);
    if (found == groups_.end())
      throw_user_error(fmt::format("{} of group {}, which does not exist on rank {}",
                                   name_of(collective.spec.kind), collective.group, rank()));
    auto prepared = std::make_unique<StepCollective>();
    prepared->communicator = this;
    prepared->group = &found->second;
    prepared->collective = collective;
    CollectiveSpec& spec = prepared->collective.spec;
    if (spec.algorithm == Algorithm::automatic) spec.algorithm = options_.algorithm;
    const GroupState& group = found->second;
    check_collective(spec, group.shape.members(), group.member);
    spec.algorithm = choose_algorithm(spec, group.shape);
    prepared->spec = spec;
    make_plan(*prepared);
    return prepared;
  }

  Event start(PreparedCollective& prepared, Stream& stream, TimeSpan* span) override {
    Task task;
    task.run = [](void* argument, ThreadTeam&) {
      auto& collective = *static_cast<StepCollective*>(argument);
      collective.communicator->run(collective);
    };
    task.argument = static_cast<StepCollective*>(&prepared);
    task.span = span;
    ATHANOR_ASSERT(stream_ == nullptr || stream_ == &stream, "collectives of a rank run on one stream");
    stream_ = &stream;
    stream.enqueue(task);
    return stream.record();
  }

  void run(PreparedCollective& prepared) override {
    auto& collective = static_cast<StepCollective&>(prepared);
    try {
      take_number(collective);
      transport_->check();
      run_plan(collective);
    } catch (const Error& error) {
      give_up(error);
    }
  }

  void abort(const std::string& reason) override {
    transport_->abort(fmt::format("rank {}: {}", rank(), reason));
  }

 private:
  void make_plan(StepCollective& prepared) {
    const GroupState& group = *prepared.group;
    prepared.plan = plan_collective(prepared.spec, group.shape, group.member);
    prepared.signature = signature_of(prepared.spec, prepared.plan.algorithm);
    const int64_t needed = prepared.plan.scratch_bytes;
    if (needed <= prepared.scratch_bytes) return;
    // One runs after another, so all may use the same.
    if (needed > scratch_bytes_) {
      scratch_ = transport_->allocate(needed);
      scratch_bytes_ = needed;
    }
    prepared.scratch = scratch_;
    prepared.scratch_bytes = scratch_bytes_;
  }

  // Counts that lie in memory, into the spec; a new plan if they have changed.
  void read_counts(StepCollective& prepared) {
    const Collective& collective = prepared.collective;
    if (collective.counts_at == nullptr && collective.receive_counts_at == nullptr) return;
    bool changed = false;
    const auto read = [&](const int64_t* from, const std::vector<int64_t>& most,
                          std::vector<int64_t>& counts) {
      if (from == nullptr) return;
      for (size_t i = 0; i < most.size(); ++i) {
        if (from[i] < 0 || from[i] > most[i])
          throw Error(ErrorKind::stop_job,
                      fmt::format("{} '{}': a count of {} where there is room for {}",
                                  name_of(collective.spec.kind), collective.label, from[i], most[i]));
        changed = changed || counts[i] != from[i];
        counts[i] = from[i];
      }
    };
    read(collective.counts_at, collective.spec.counts, prepared.spec.counts);
    read(collective.receive_counts_at, collective.spec.receive_counts, prepared.spec.receive_counts);
    if (changed) make_plan(prepared);
  }

  void take_number(const StepCollective& prepared) {
    GroupState& group = *prepared.group;
    const CollectiveKind kind = prepared.spec.kind;
    const auto peer = static_cast<size_t>(prepared.spec.root);
    uint64_t& next = kind == CollectiveKind::send      ? group.sent[peer]
                     : kind == CollectiveKind::receive ? group.received[peer]
                                                       : group.sequence;
    running_ = {{group.group.id, kind, next++}, &prepared, monotonic_ns()};
  }

  void run_plan(StepCollective& prepared) {
    read_counts(prepared);
    const GroupState& group = *prepared.group;
    const CollectiveKind kind = prepared.spec.kind;
    transport_->board().begin(running_.issued);

    PlanExecution execution;
    execution.plan = &prepared.plan;
    execution.ranks = group.group.ranks;
    execution.places = {const_cast<std::byte*>(prepared.collective.input), prepared.collective.output,
                        prepared.scratch.get()};
    execution.header.group = group.group.id;
    execution.header.signature = prepared.signature;
    execution.header.sequence = running_.issued.sequence;
    execution.header.kind =
        static_cast<uint32_t>(kind == CollectiveKind::receive ? CollectiveKind::send : kind);
    execution.deadline_ns =
        running_.begin_ns + (prepared.collective.patient ? options_.patience_ns : options_.timeout_ns);
    execution.on_timeout = &on_timeout_;
    execution.on_mismatch = &on_mismatch_;
    interpreter_.run(execution);
    transport_->board().complete();
  }

  std::string describe_running() const {
    const CollectiveSpec& spec = running_.collective->spec;
    const int member = running_.collective->group->member;
    const int64_t count = std::max(input_count(spec, member), output_count(spec, member));
    const std::string& label = running_.collective->collective.label;
    return fmt::format("{} ({} {} = {} bytes{}{})", describe(running_.issued, names_), count,
                       name_of(spec.dtype), count * static_cast<int64_t>(size_of(spec.dtype)),
                       label.empty() ? "" : ", ", label);
  }

  // Throws the reason, when the peers have been told.
  [[noreturn]] void give_up(const Error& error) {
    Error reason = error;
    try {
      transport_->check();
    } catch (const Error& earlier) {
      // Who has given up takes its memory and connections along: what failed here may be no more than that.
      reason = earlier;
    }
    transport_->abort(reason.message());
    throw Error(reason.kind(), with_place(reason.message()), reason.hint());
  }

  // A reason that came from elsewhere, and which collective of this rank it has ended.
  std::string with_place(const std::string& reason) const {
    if (reason.find(describe(running_.issued, names_)) != std::string::npos) return reason;
    return fmt::format("{}\n  rank {} was at {}", reason, rank(), describe_running());
  }

  [[noreturn]] void report_timeout(int awaited) {
    const std::vector<int>& members = running_.collective->group->group.ranks;
    const double seconds = seconds_of(monotonic_ns() - running_.begin_ns);
    const auto answers = transport_->ask(members, monotonic_ns() + answer_time_ns);
    WaitReport report = report_wait(running_.issued, rank(), awaited, members, answers, names_);
    follow_waits(report, members, answers, names_, [&](int other) {
      if (other >= transport_->ranks()) return RankAnswer{};  // a peer may say anything
      return transport_->ask({{other}}, monotonic_ns() + answer_time_ns).front();
    });
    const std::string behind =
        report.behind.empty() ? "" : fmt::format(", held up by rank {}", fmt::join(report.behind, ", "));
    throw Error(
        ErrorKind::restart_worker,
        fmt::format("rank {}: {} did not end within {:.1f} s; missing: rank {}{}{}", rank(),
                    describe_running(), seconds, fmt::join(report.missing, ", "), behind, report.text));
  }

  [[noreturn]] void report_mismatch(int peer, const MessageHeader& expected, const MessageHeader& found) {
    const auto kind = static_cast<CollectiveKind>(found.kind % collective_kind_count);
    std::string text =
        fmt::format("rank {}: {} got a message of rank {} that belongs to {}", rank(), describe_running(),
                    peer, describe({found.group, kind, found.sequence}, names_));
    if (found.group == expected.group && found.sequence == expected.sequence && found.kind == expected.kind)
      text += fmt::format(
          " but not to the same counts, types or algorithm (message {} of {} bytes, expected "
          "{} of {})",
          found.index, found.bytes, expected.index, expected.bytes);
    const std::vector<int> both{rank(), peer};
    const auto answers = transport_->ask(both, monotonic_ns() + answer_time_ns);
    for (size_t i = 0; i < both.size(); ++i)
      text += fmt::format(
          "\n  rank {}: {}", both[i],
          answers[i].status ? describe(*answers[i].status, names_, RankBoard::history) : "does not answer");
    throw Error(ErrorKind::stop_job, text,
                "every rank must start the collectives it shares in the same order");
  }

  std::unique_ptr<Transport> transport_;
  CommunicatorOptions options_;
  Interpreter interpreter_;
  std::map<GroupId, GroupState> groups_;
  GroupNames names_;
  Stream* stream_ = nullptr;
  Running running_;
  const std::function<void(int)> on_timeout_ = [this](int rank) { report_timeout(rank); };
  const std::function<void(int, const MessageHeader&, const MessageHeader&)> on_mismatch_ =
      [this](int rank, const MessageHeader& expected, const MessageHeader& found) {
        report_mismatch(rank, expected, found);
      };
  std::shared_ptr<std::byte> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Transport> transport,
                                                CommunicatorOptions options) {
  return std::make_unique<StepCommunicator>(std::move(transport), std::move(options));
}

}  // namespace athanor
