// What ranks tell each other outside of steps: decisions that all must take alike, and byte strings of any
// length (tensors on their way to a file).
//
// Called by train and checkpoint, on the thread that runs the steps and never while a step runs. All ranks
// must make the same calls in the same order. One that prepares data or writes a file keeps the others
// waiting: they are patient. Errors: those of the communicator. Thread safety: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/comm/communicator.h"

namespace athanor {

// The number of the group of all ranks; groups along axes have lower ones.
inline constexpr GroupId all_ranks_group = 1'000'000;

class RankMessages {
 public:
  // Null: one rank, which has nobody to talk to.
  explicit RankMessages(Communicator* communicator);
  ~RankMessages();

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int ranks() const { return communicator_ == nullptr ? 1 : communicator_->ranks(); }
  bool is_first() const { return rank() == 0; }

  // Each value becomes the largest, or the sum, over all ranks. At most `most_values`.
  static constexpr size_t most_values = 64;
  void all_max(std::span<int64_t> values);
  void all_sum(std::span<double> values);
  bool any(bool flag);
  void wait_for_all() { any(false); }
  // make() on rank 0 first, then on the others: they find what it leaves behind, in files.
  template <class Make>
  auto first_then_others(const Make& make) {
    if (!is_first()) wait_for_all();
    auto made = make();
    if (is_first()) wait_for_all();
    return made;
  }

  // Rank 0's message to all.
  void broadcast(std::vector<std::byte>& message);
  void broadcast(std::string& text);
  void broadcast(std::span<int64_t> values);  // at most most_values

  // From one rank to another, any length; sent in pieces of at most `piece_bytes`, which is what both sides
  // hold besides the message.
  static constexpr int64_t piece_bytes = int64_t{1} << 20;
  void send(int rank, std::span<const std::byte> message);
  void receive(int rank, std::vector<std::byte>& message);

  // What this rank is doing from now on, for the reports of those who wait for it in vain.
  void set_phase(std::string_view phase);
  // Ends the waiting of all other ranks with `reason`.
  void abort(const std::string& reason);
  // Runs `work`; an Error that it throws ends the other ranks too.
  template <class Work>
  void abort_with_error(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      abort(error.message());
      throw;
    }
  }

 private:
  struct Buffers;
  // Runs the operation with peer or root `root` over the first `words` 8-byte words of the buffer for it.
  void run(CollectiveKind kind, int root, int64_t words);
  template <class Number>
  void reduce(std::span<Number> values, std::array<Number, most_values>& buffer, DType dtype,
              CollectiveReduction reduction);

  Communicator* communicator_;
  std::unique_ptr<Buffers> buffers_;
  std::map<std::pair<CollectiveKind, int>, std::unique_ptr<PreparedCollective>> prepared_;
};

}  // namespace athanor
