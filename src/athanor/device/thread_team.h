// The thread team of one CPU compute stream: a fixed set of threads that run tiles of one kernel at a time.
//
// Called by CPU kernels. The tile grid of a kernel must not depend on size(): then the bits of its result
// do not either. Thread safety: one parallel_for at a time, from the thread that owns the team; a tile must
// not call parallel_for of its own team.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace athanor {

class ThreadTeam {
 public:
  // `threads` >= 1, the calling thread counted: a team of one starts no thread. `cores` is how many cores
  // the team may count on: waiting threads spin only if the team fits in them, else they yield and then
  // sleep. 0 stands for all cores the process may run on; teams that share a machine should say their part.
  // Throws a user error if the system refuses the threads.
  explicit ThreadTeam(int threads, int cores = 0);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;

  // Calls body(tile, thread) once for each tile in [0, tiles), on any thread in any order, thread in
  // [0, size()). A thread takes tiles one by one, first those of its own range of neighbours, then what
  // others have left. Returns when all are done. The first exception a tile throws is rethrown here after the
  // tiles under way have ended; tiles that have not begun by then are left out.
  template <class Body>
  void parallel_for(int64_t tiles, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        tiles, [](void* context, int64_t tile, int thread) { (*static_cast<Plain*>(context))(tile, thread); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

 private:
  using Function = void (*)(void* context, int64_t tile, int thread);
  void run(int64_t tiles, Function function, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

// The number of cores the calling thread may run on, at least 1.
int available_cores();

// A slip in a number must not fill the machine: a user error for 64 or more of `what` ("ranks", "threads")
// for each core. `advice`: what else to give.
void refuse_too_many(int count, std::string_view what, std::string_view advice);

}  // namespace athanor
