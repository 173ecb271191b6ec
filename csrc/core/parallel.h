// Threads. OpenMP's own pool is used rather than at::parallel_for, which is a wrapper around the
// same pool (one libgomp serves torch and this library), so that kernels build and are tested
// without torch.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

namespace convtbw {

// True in a child of fork(): a pool that the parent used does not exist there and libgomp waits for
// it for ever. Whoever makes a Problem asks this and sets `threads` to 1.
bool in_forked_child();

// Runs body(i) for every i in [0, count), on up to `threads` threads, in any order. An exception of
// the body is rethrown here after all threads have ended.
template <class Body>
void parallel_for(int threads, int64_t count, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::exception_ptr error;
  std::mutex mutex;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace convtbw
