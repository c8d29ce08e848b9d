#include "athanor/comm/rank_messages.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

namespace {

constexpr int64_t word_bytes = 8;

}  // namespace

// What lies here is what travels: at most a piece and its count.
struct RankMessages::Buffers {
  std::vector<int64_t> words = std::vector<int64_t>(static_cast<size_t>(piece_bytes / word_bytes));
  std::array<int64_t, most_values> numbers{};
  std::array<double, most_values> sums{};
  int64_t count = 0;  // read by the collective when it runs
};

RankMessages::RankMessages(Communicator* communicator)
    : communicator_(communicator), buffers_(std::make_unique<Buffers>()) {
  if (communicator_ == nullptr) return;
  std::vector<int> all(static_cast<size_t>(communicator_->ranks()));
  std::iota(all.begin(), all.end(), 0);
  communicator_->add_group({all_ranks_group, "all ranks", std::move(all)});
}

RankMessages::~RankMessages() = default;

void RankMessages::run(CollectiveKind kind, int root, int64_t words) {
  auto& prepared = prepared_[{kind, root}];
  if (!prepared) {
    Collective collective;
    collective.group = all_ranks_group;
    collective.spec = {.kind = kind,
                       .dtype = DType::int64,
                       .wire = DType::int64,
                       .root = root,
                       .counts = {static_cast<int64_t>(buffers_->words.size())},
                       .receive_counts = {}};
    auto* const bytes = reinterpret_cast<std::byte*>(buffers_->words.data());
    collective.input = bytes;
    collective.output = bytes;
    collective.counts_at = &buffers_->count;
    collective.label = "messages between steps";
    collective.patient = true;
    prepared = communicator_->prepare(collective);
  }
  buffers_->count = words;
  communicator_->run(*prepared);
}

template <class Number>
void RankMessages::reduce(std::span<Number> values, std::array<Number, most_values>& buffer, DType dtype,
                          CollectiveReduction reduction) {
  ATHANOR_ASSERT(values.size() <= most_values);
  if (ranks() == 1) return;
  auto& prepared = prepared_[{CollectiveKind::all_reduce, static_cast<int>(reduction)}];
  if (!prepared) {
    Collective collective;
    collective.group = all_ranks_group;
    collective.spec = {.kind = CollectiveKind::all_reduce,
                       .dtype = dtype,
                       .wire = dtype,
                       .reduction = reduction,
                       .counts = {most_values},
                       .receive_counts = {}};
    collective.input = reinterpret_cast<const std::byte*>(buffer.data());
    collective.output = reinterpret_cast<std::byte*>(buffer.data());
    collective.label = "agreement between steps";
    collective.patient = true;
    prepared = communicator_->prepare(collective);
  }
  buffer.fill(0);
  std::copy(values.begin(), values.end(), buffer.begin());
  communicator_->run(*prepared);
  std::copy_n(buffer.begin(), values.size(), values.begin());
}

void RankMessages::all_max(std::span<int64_t> values) {
  reduce(values, buffers_->numbers, DType::int64, CollectiveReduction::max);
}

void RankMessages::all_sum(std::span<double> values) {
  reduce(values, buffers_->sums, DType::fp64, CollectiveReduction::sum);
}

bool RankMessages::any(bool flag) {
  int64_t value = flag ? 1 : 0;
  all_max({&value, 1});
  return value != 0;
}

void RankMessages::broadcast(std::span<int64_t> values) {
  ATHANOR_ASSERT(values.size() <= most_values);
  if (ranks() == 1) return;
  std::copy(values.begin(), values.end(), buffers_->words.begin());
  run(CollectiveKind::broadcast, 0, static_cast<int64_t>(values.size()));
  std::copy_n(buffers_->words.begin(), values.size(), values.begin());
}

void RankMessages::broadcast(std::vector<std::byte>& message) {
  if (ranks() == 1) return;
  auto length = static_cast<int64_t>(message.size());
  broadcast({&length, 1});
  message.resize(static_cast<size_t>(length));
  for (int64_t first = 0; first < length; first += piece_bytes) {
    const int64_t bytes = std::min(piece_bytes, length - first);
    std::memcpy(buffers_->words.data(), message.data() + first, static_cast<size_t>(bytes));
    run(CollectiveKind::broadcast, 0, (bytes + word_bytes - 1) / word_bytes);
    std::memcpy(message.data() + first, buffers_->words.data(), static_cast<size_t>(bytes));
  }
}

void RankMessages::broadcast(std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<std::byte> message(bytes.begin(), bytes.end());
  broadcast(message);
  text.assign(reinterpret_cast<const char*>(message.data()), message.size());
}

void RankMessages::send(int rank, std::span<const std::byte> message) {
  const auto length = static_cast<int64_t>(message.size());
  buffers_->words[0] = length;
  run(CollectiveKind::send, rank, 1);
  for (int64_t first = 0; first < length; first += piece_bytes) {
    const int64_t bytes = std::min(piece_bytes, length - first);
    std::memcpy(buffers_->words.data(), message.data() + first, static_cast<size_t>(bytes));
    run(CollectiveKind::send, rank, (bytes + word_bytes - 1) / word_bytes);
  }
}

void RankMessages::receive(int rank, std::vector<std::byte>& message) {
  run(CollectiveKind::receive, rank, 1);
  const int64_t length = buffers_->words[0];
  message.resize(static_cast<size_t>(length));
  for (int64_t first = 0; first < length; first += piece_bytes) {
    const int64_t bytes = std::min(piece_bytes, length - first);
    run(CollectiveKind::receive, rank, (bytes + word_bytes - 1) / word_bytes);
    std::memcpy(message.data() + first, buffers_->words.data(), static_cast<size_t>(bytes));
  }
}

void RankMessages::set_phase(std::string_view phase) {
  if (communicator_ != nullptr) communicator_->set_phase(phase);
}

void RankMessages::abort(const std::string& reason) {
  if (communicator_ != nullptr) communicator_->abort(reason);
}

}  // namespace athanor
