// Runs the steps of a plan over a transport.
//
// Called by communicator.h. Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "athanor/comm/plan.h"
#include "athanor/comm/reduction.h"
#include "athanor/comm/transport.h"

namespace athanor {

// One run of a plan.
struct PlanExecution {
  const Plan* plan = nullptr;
  std::span<const int> ranks;          // of the group's members
  std::array<std::byte*, 3> places{};  // input, output, scratch; the input is only read
  MessageHeader header;                // group, signature, sequence, kind
  int64_t deadline_ns = 0;             // monotonic
  // Throws an error about a wait that came to its deadline; `rank` is the one waited for.
  const std::function<void(int rank)>* on_timeout = nullptr;
  // Throws an error about a message of `rank` that belongs elsewhere.
  const std::function<void(int rank, const MessageHeader& expected, const MessageHeader& found)>*
      on_mismatch = nullptr;
};

class Interpreter {
 public:
  explicit Interpreter(Transport& transport) : transport_(transport) {}
  // Returns when every step is done and peers have taken what was sent: the places may then be used again.
  void run(const PlanExecution& execution);

 private:
  struct Arrival {
    Link* link = nullptr;
    int rank = -1;
    uint64_t bytes = 0;  // of the message
  };
  MessageHeader next_header(int member, int64_t bytes);
  void send(const Step& step);
  void offer_places();
  void ask_readers(const Step& step);
  void hand_to_readers(const Step& step);
  bool take_written(const Step& step);
  void combine_arriving(const Step& step);
  int64_t wait_for_elements(Arrival& arrival, const PlanOperand& operand, int64_t left, bool first);
  void wait_until_taken(int member, uint64_t messages);
  template <class Ready>
  void await(int rank, const Ready& ready);
  std::byte* at(const PlanRegion& region) const {
    return execution_->places[static_cast<size_t>(region.place)] + region.offset;
  }

  Transport& transport_;
  const PlanExecution* execution_ = nullptr;
  int64_t deadline_ns_ = 0;                // of this run
  std::vector<uint64_t> posted_before_;    // by member, before this run
  std::vector<uint32_t> sent_, received_;  // messages of this run, by member
  std::vector<CombineSource> sources_;     // kept between steps for their memory
  std::vector<std::byte*> targets_;
  std::vector<Arrival> arrivals_;
  struct Reader {
    Link* link = nullptr;
    MessageHeader header;
    std::byte* target = nullptr;  // where it offered; null: the message is posted
  };
  std::vector<Reader> readers_;
};

}  // namespace athanor
