#include "athanor/checkpoint/rank_tensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"

namespace athanor {

namespace {

constexpr int64_t no_tensor = -1;
constexpr int64_t piece_bytes = int64_t{4} << 20;  // of a tensor, at a time

// Of which elements a rank has. Ranks have the same elements of a tensor or none in common, so one of those
// with equal digests is enough. 0: none.
uint64_t digest_of(const std::vector<StoredRun>& runs) {
  uint64_t digest = 0;
  for (const StoredRun& run : runs) {
    digest = mix64(digest ^ static_cast<uint64_t>(run.global_first)) + 0x9E3779B97F4A7C15u;
    digest = mix64(digest ^ static_cast<uint64_t>(run.length)) | 1;
  }
  return digest;
}

template <class Value>
std::span<const std::byte> bytes_of_values(const std::vector<Value>& values) {
  return std::as_bytes(std::span(values));
}

// The values of a message that must hold `count` of them.
template <class Value>
std::vector<Value> values_of(const std::vector<std::byte>& message, size_t count, int rank) {
  if (message.size() != count * sizeof(Value)) {
    throw Error(ErrorKind::stop_job,
                fmt::format("rank {} has a checkpoint of {} bytes of names where rank 0 expects {}", rank,
                            message.size(), count * sizeof(Value)),
                "all ranks must run the same program with the same options");
  }
  std::vector<Value> values(count);
  std::memcpy(values.data(), message.data(), message.size());
  return values;
}

}  // namespace

RankGather::RankGather(RankMessages& messages, std::vector<RankTensor> tensors)
    : messages_(messages), tensors_(std::move(tensors)) {
  for (const RankTensor& tensor : tensors_) {
    auto& runs = by_place_.emplace_back(tensor.runs);
    std::sort(runs.begin(), runs.end(),
              [](const StoredRun& a, const StoredRun& b) { return a.global_first < b.global_first; });
  }
  find_senders();
}

int64_t RankGather::elements(size_t tensor) const {
  int64_t elements = 1;
  for (const int64_t size : tensors_[tensor].shape) elements *= size;
  return elements;
}

int64_t RankGather::elements_of_piece(size_t tensor) const {
  return piece_bytes / static_cast<int64_t>(size_of(tensors_[tensor].dtype));
}

void RankGather::find_senders() {
  std::vector<uint64_t> digests;
  for (const auto& runs : by_place_) digests.push_back(digest_of(runs));
  senders_.resize(tensors_.size());
  sends_.assign(tensors_.size(), 0);
  if (!messages_.is_first()) {
    messages_.send(0, bytes_of_values(digests));
    std::vector<std::byte> answer;
    messages_.receive(0, answer);
    sends_ = values_of<char>(answer, tensors_.size(), 0);
    return;
  }
  std::vector<std::set<uint64_t>> known(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) known[i] = {0, digests[i]};
  for (int rank = 1; rank < messages_.ranks(); ++rank) {
    std::vector<std::byte> message;
    messages_.receive(rank, message);
    const auto theirs = values_of<uint64_t>(message, tensors_.size(), rank);
    std::vector<char> wanted(tensors_.size(), 0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!known[i].insert(theirs[i]).second) continue;
      senders_[i].push_back(rank);
      wanted[i] = 1;
    }
    messages_.send(rank, bytes_of_values(wanted));
  }
}

std::vector<RankGather::Piece> RankGather::pieces(size_t tensor, int64_t first, int64_t length) const {
  const auto size = static_cast<int64_t>(size_of(tensors_[tensor].dtype));
  const auto& runs = by_place_[tensor];
  std::vector<Piece> found;
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const StoredRun& each) {
    return each.global_first + each.length <= first;
  });
  for (; run != runs.end() && run->global_first < first + length; ++run) {
    const int64_t begin = std::max(run->global_first, first);
    const int64_t end = std::min(run->global_first + run->length, first + length);
    const int64_t local = run->local_first + begin - run->global_first;
    found.push_back({begin, end - begin, tensors_[tensor].bytes.data() + local * size});
  }
  return found;
}

// The number of pieces, where each begins and how long it is; then their elements.
std::vector<std::byte> RankGather::pack(size_t tensor, int64_t first, int64_t length) const {
  const auto size = static_cast<int64_t>(size_of(tensors_[tensor].dtype));
  const std::vector<Piece> found = pieces(tensor, first, length);
  std::vector<int64_t> places{static_cast<int64_t>(found.size())};
  for (const Piece& piece : found) {
    places.push_back(piece.global_first);
    places.push_back(piece.length);
  }
  const auto head = bytes_of_values(places);
  std::vector<std::byte> message(head.begin(), head.end());
  for (const Piece& piece : found)
    message.insert(message.end(), piece.data, piece.data + piece.length * size);
  return message;
}

namespace {

// Puts the pieces of a message into `out`, which holds elements [first, first + length). Returns how many
// elements they were; -1 for a message that is none.
int64_t unpack(const std::vector<std::byte>& message, int64_t first, int64_t length, int64_t size,
               std::byte* out) {
  const auto word = [&](size_t index) {
    int64_t value = 0;
    std::memcpy(&value, message.data() + index * sizeof(value), sizeof(value));
    return value;
  };
  const size_t words = message.size() / sizeof(int64_t);
  const int64_t count = words > 0 ? word(0) : -1;
  if (count < 0 || count > static_cast<int64_t>(words / 2)) return -1;
  size_t at = static_cast<size_t>(1 + 2 * count) * sizeof(int64_t);
  int64_t filled = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = word(static_cast<size_t>(1 + 2 * i)), run = word(static_cast<size_t>(2 + 2 * i));
    if (begin < first || run < 1 || run > first + length - begin) return -1;
    const auto bytes = static_cast<size_t>(run * size);
    if (at > message.size() || bytes > message.size() - at) return -1;
    std::memcpy(out + (begin - first) * size, message.data() + at, bytes);
    at += bytes;
    filled += run;
  }
  return at == message.size() ? filled : -1;
}

}  // namespace

void RankGather::produce(size_t tensor, const TensorProducer::Sink& sink) {
  auto asked = static_cast<int64_t>(tensor);
  messages_.broadcast({&asked, 1});
  const auto size = static_cast<int64_t>(size_of(tensors_[tensor].dtype));
  const int64_t all = elements(tensor), most = elements_of_piece(tensor);
  std::vector<std::byte> whole, message;
  for (int64_t first = 0; first < all; first += most) {
    const int64_t length = std::min(most, all - first);
    const std::vector<Piece> own = pieces(tensor, first, length);
    if (own.size() == 1 && own[0].length == length) {
      for (const int rank : senders_[tensor]) messages_.receive(rank, message);
      sink({own[0].data, static_cast<size_t>(length * size)});
      continue;
    }
    whole.resize(static_cast<size_t>(length * size));
    int64_t filled = 0;
    for (const Piece& piece : own) {
      std::memcpy(whole.data() + (piece.global_first - first) * size, piece.data,
                  static_cast<size_t>(piece.length * size));
      filled += piece.length;
    }
    for (const int rank : senders_[tensor]) {
      messages_.receive(rank, message);
      const int64_t got = unpack(message, first, length, size, whole.data());
      if (got < 0) {
        throw Error(ErrorKind::stop_job,
                    fmt::format("rank {} sent no part of {}", rank, tensors_[tensor].name));
      }
      filled += got;
    }
    if (filled != length) {
      throw Error(ErrorKind::stop_job,
                  fmt::format("{}: the ranks have {} of elements {} to {}", tensors_[tensor].name, filled,
                              first, first + length),
                  "all ranks must run the same program with the same options");
    }
    sink(whole);
  }
}

std::vector<TensorProducer> RankGather::producers() {
  ATHANOR_ASSERT(messages_.is_first());
  std::vector<TensorProducer> producers;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    producers.push_back({tensors_[i].name, tensors_[i].dtype, tensors_[i].shape,
                         [this, i](const TensorProducer::Sink& sink) { produce(i, sink); }});
  }
  return producers;
}

void RankGather::finish() {
  int64_t none = no_tensor;
  messages_.broadcast({&none, 1});
}

void RankGather::serve() {
  for (;;) {
    int64_t asked = no_tensor;
    messages_.broadcast({&asked, 1});
    if (asked == no_tensor) return;
    const auto tensor = static_cast<size_t>(asked);
    if (sends_[tensor] == 0) continue;
    const int64_t all = elements(tensor), most = elements_of_piece(tensor);
    for (int64_t first = 0; first < all; first += most)
      messages_.send(0, pack(tensor, first, std::min(most, all - first)));
  }
}

SaveReport save_on_ranks(CheckpointFolder& folder, RankMessages& messages, int64_t step,
                         std::vector<RankTensor> tensors, const CheckpointState& state) {
  RankGather gather(messages, std::move(tensors));
  if (!messages.is_first()) {
    gather.serve();
    return {};
  }
  SaveReport report = folder.save_produced(step, gather.producers(), state);
  gather.finish();
  return report;
}

}  // namespace athanor
