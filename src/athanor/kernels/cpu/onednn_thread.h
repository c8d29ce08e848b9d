// Keeps oneDNN on the calling thread.
//
// Called by every function that creates or executes a primitive. oneDNN asks OpenMP how many threads to use,
// and that number belongs to the calling thread; with one, no parallel region is ever entered. Thread safety:
// touches the state of the calling thread alone.
#pragma once

extern "C" {
// Of GCC's OpenMP, which oneDNN is linked with; <omp.h> may be another compiler's.
void omp_set_num_threads(int);
int omp_get_max_threads(void);
}

namespace athanor::cpu {

class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace athanor::cpu
