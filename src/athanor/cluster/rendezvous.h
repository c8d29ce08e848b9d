// How the ranks of a job find each other: each tells the store its address and gets those of its peers, in
// one message each way.
//
// Called by rank_context.h and benchmarks. Thread safety: an AddressBook from several threads.
//
// No rank waits for ranks that it has nothing to do with. It gets the addresses of those that share an axis
// of the mesh with it, of a small job all; any other it asks for when it first needs it. Keys carry the
// generation of the membership, so a job that starts anew does not meet its past.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "athanor/comm/host_transport.h"
#include "athanor/ir/placement.h"
#include "athanor/store/store.h"

namespace athanor {

struct RendezvousOptions {
  Mesh mesh;  // of all ranks
  uint64_t generation = 1;
  int64_t timeout_ns = 600'000'000'000;       // until all peers have come
  static constexpr int64_t small_job = 1024;  // ranks of which everybody knows all
};

// The ranks that share an axis of the mesh with a rank, itself among them: one range for each axis that has
// more than one.
std::vector<MemberRange> axis_neighbours(const Mesh& mesh, int rank);

// What a rank says and asks for.
Gathering rendezvous_request(const HostAddress& own, const RendezvousOptions& options);

class AddressBook {
 public:
  // `gathered` answers the request. `store` is asked for those who are not in it; it must outlive the book.
  AddressBook(Store* store, const RendezvousOptions& options, int rank, const Gathering& request,
              Gathered gathered);
  // Throws Error(restart_worker) if the rank has not come until the time-out.
  HostAddress address_of(int rank);
  size_t known() const { return known_; }
  // For each rank the number of its host, beginning with 0. Of a job in which not everybody knows all, ranks
  // lie in blocks of `local_ranks` on each host; throws a user error if those that are known do not.
  std::vector<int> hosts(int local_ranks);

 private:
  std::string text_of(int rank) const;  // empty: not known

  Store* const store_;
  const RendezvousOptions options_;
  const int rank_;
  std::vector<MemberRange> ranges_;
  std::vector<ValueList> values_;
  size_t known_ = 0;
  std::mutex mutex_;  // guards later_
  std::map<int, HostAddress> later_;
};

// Publishes `own` and waits for the peers. Throws Error(restart_worker) that names those who have not come.
std::unique_ptr<AddressBook> meet(Store& store, const HostAddress& own, const RendezvousOptions& options);

}  // namespace athanor
