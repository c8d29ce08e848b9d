#include "athanor/cluster/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

std::string key_of(const RendezvousOptions& options) {
  return fmt::format("addresses/{}", options.generation);
}

[[noreturn]] void report_missing(int rank, const Gathered& gathered, const RendezvousOptions& options) {
  constexpr size_t most = 20;
  const size_t shown = std::min(most, gathered.missing.size());
  throw Error(
      ErrorKind::restart_worker,
      fmt::format(
          "start-up: rank {} of {} has waited {:.1f} s, and {} not come: {} {}{}", rank, options.mesh.ranks(),
          seconds_of(options.timeout_ns),
          gathered.missing_count == 1 ? "one peer has" : fmt::format("{} peers have", gathered.missing_count),
          gathered.missing_count == 1 ? "rank" : "ranks",
          fmt::join(gathered.missing.begin(), gathered.missing.begin() + static_cast<int64_t>(shown), ", "),
          gathered.missing_count > shown ? ", ..." : ""),
      "see what these ranks said; were all started, with the same store and generation?");
}

}  // namespace

std::vector<MemberRange> axis_neighbours(const Mesh& mesh, int rank) {
  const Coordinates own = coordinates_of(mesh, rank);
  std::vector<MemberRange> ranges;
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::shard, Axis::replica, Axis::pipeline}) {
    if (mesh.size(axis) == 1) continue;
    Coordinates at = own;
    at[static_cast<size_t>(axis)] = 0;
    const auto begin = static_cast<uint32_t>(rank_of(mesh, at));
    at[static_cast<size_t>(axis)] = 1;
    ranges.push_back(
        {begin, static_cast<uint32_t>(rank_of(mesh, at)) - begin, static_cast<uint32_t>(mesh.size(axis))});
  }
  return ranges;
}

Gathering rendezvous_request(const HostAddress& own, const RendezvousOptions& options) {
  const int64_t ranks = options.mesh.ranks();
  ATHANOR_ASSERT(own.rank >= 0 && own.rank < ranks && own.generation == options.generation);
  Gathering request;
  request.key = key_of(options);
  request.members = static_cast<uint32_t>(ranks);
  request.first = static_cast<uint32_t>(own.rank);
  request.values = {to_text(own)};
  if (ranks <= RendezvousOptions::small_job) {
    request.wanted.push_back({0, 1, request.members});
  } else {
    request.wanted = axis_neighbours(options.mesh, own.rank);
  }
  return request;
}

AddressBook::AddressBook(Store* store, const RendezvousOptions& options, int rank, const Gathering& request,
                         Gathered gathered)
    : store_(store),
      options_(options),
      rank_(rank),
      ranges_(request.wanted),
      values_(std::move(gathered.values)) {
  ATHANOR_ASSERT(ranges_.size() == values_.size());
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (values_[i].size() != ranges_[i].count)
      throw Error(ErrorKind::restart_worker, "the store does not answer what it was asked");
    known_ += ranges_[i].count;
  }
}

std::string AddressBook::text_of(int rank) const {
  const auto member = static_cast<uint32_t>(rank);
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (ranges_[i].holds(member))
      return std::string(values_[i][(member - ranges_[i].begin) / ranges_[i].stride]);
  return {};
}

HostAddress AddressBook::address_of(int rank) {
  std::string text = text_of(rank);
  const std::lock_guard lock(mutex_);
  if (text.empty()) {
    const auto found = later_.find(rank);
    if (found != later_.end()) return found->second;
    ATHANOR_ASSERT(store_ != nullptr && rank >= 0 && rank < options_.mesh.ranks(), "rank {}", rank);
    Gathering request;
    request.key = key_of(options_);
    request.members = static_cast<uint32_t>(options_.mesh.ranks());
    request.wanted = {{static_cast<uint32_t>(rank), 1, 1}};
    const Gathered gathered = store_->gather(request, options_.timeout_ns);
    if (gathered.missing_count > 0) report_missing(rank_, gathered, options_);
    text = gathered.values.at(0)[0];
  }
  const HostAddress address = parse_host_address(text);
  if (address.rank != rank || address.generation != options_.generation)
    throw Error(ErrorKind::restart_worker,
                fmt::format("the address of rank {} is one of rank {} in generation {}", rank, address.rank,
                            address.generation));
  later_.emplace(rank, address);
  return address;
}

std::vector<int> AddressBook::hosts(int local_ranks) {
  const auto ranks = static_cast<int>(options_.mesh.ranks());
  std::vector<int> hosts(static_cast<size_t>(ranks));
  if (ranks <= RendezvousOptions::small_job) {
    std::map<std::string, int> numbers;
    for (int rank = 0; rank < ranks; ++rank)
      hosts[static_cast<size_t>(rank)] =
          numbers.emplace(address_of(rank).host, static_cast<int>(numbers.size())).first->second;
    return hosts;
  }
  for (int rank = 0; rank < ranks; ++rank) hosts[static_cast<size_t>(rank)] = rank / local_ranks;
  const std::string own = address_of(rank_).host;
  for (const MemberRange& range : ranges_)
    for (uint32_t i = 0; i < range.count; ++i) {
      const auto peer = static_cast<int>(range.begin + i * range.stride);
      if ((peer / local_ranks == rank_ / local_ranks) == (address_of(peer).host == own)) continue;
      throw_user_error(fmt::format("ranks {} and {} are {}on one host, which blocks of {} ranks do not give",
                                   rank_, peer, address_of(peer).host == own ? "" : "not ", local_ranks),
                       "start the same number of ranks on every host, the ranks of a host one after another");
    }
  return hosts;
}

std::unique_ptr<AddressBook> meet(Store& store, const HostAddress& own, const RendezvousOptions& options) {
  const Gathering request = rendezvous_request(own, options);
  Gathered gathered = store.gather(request, options.timeout_ns);
  if (gathered.missing_count > 0) report_missing(own.rank, gathered, options);
  return std::make_unique<AddressBook>(&store, options, own.rank, request, std::move(gathered));
}

}  // namespace athanor
