// Threads. OpenMP's own pool is used rather than at::parallel_for, which is a wrapper around the
// same pool (one libgomp serves torch and this library), so that kernels build and are tested
// without torch.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "core/stream.h"

namespace convtbw {

// True in a child of fork(): a pool that the parent used does not exist there and libgomp waits for
// it for ever. Whoever makes a Problem asks this and sets `threads` to 1.
bool in_forked_child();

// Runs body(i) for every i in [0, count), on up to `threads` threads, in any order. An exception of
// the body is rethrown here after all threads have ended.
//
// Each thread begins with a range of its own, what the next call reads again is then in its own
// cache, and ends with what others have left. OpenMP's dynamic schedule, which deals the indices in
// turn, takes 1.035 times as long in the mean of 64 gradients, up to 1.7 times where they are as
// fast as memory (Zen 5); its static one is as fast, but waits for a thread that is interrupted.
template <class Body>
void parallel_for(int threads, int64_t count, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    if (threads > 1) end_streams();
    return;
  }
  struct alignas(64) Progress {
    std::atomic<int64_t> done{0};
  };
  std::vector<Progress> progress(threads);
  std::exception_ptr error;
  std::mutex mutex;
#pragma omp parallel num_threads(threads)
  {
    const int team = omp_get_num_threads(), self = omp_get_thread_num();
    for (int other = 0; other < team; ++other) {
      const int owner = (self + other) % team;
      const int64_t begin = count * owner / team, end = count * (owner + 1) / team;
      for (int64_t i; (i = begin + progress[owner].done.fetch_add(1)) < end;) {
        try {
          body(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          error = std::current_exception();
        }
      }
    }
    end_streams();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace convtbw
