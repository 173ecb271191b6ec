// Working memory that a thread keeps between calls: freed and mapped anew at every call, its page
// faults cost 10 % of a weights gradient (Zen 3).
#pragma once

#include <cstdint>

#include "core/geometry.h"

namespace convtbw {

// Of the cache.
inline constexpr int64_t kLineBytes = 64;
inline int64_t whole_lines(int64_t bytes) { return ceil_div(bytes, kLineBytes) * kLineBytes; }

// Aligned to a line, uninitialised, valid until the thread asks again. `local` is for the body of a
// parallel loop, `shared` for what its threads read and write together, asked for by the caller.
template <class T>
T* local_scratch(int64_t count);
template <class T>
T* shared_scratch(int64_t count);

namespace detail {
void* local_bytes(int64_t bytes);
void* shared_bytes(int64_t bytes);
}  // namespace detail

template <class T>
T* local_scratch(int64_t count) {
  return static_cast<T*>(detail::local_bytes(count * sizeof(T)));
}
template <class T>
T* shared_scratch(int64_t count) {
  return static_cast<T*>(detail::shared_bytes(count * sizeof(T)));
}

}  // namespace convtbw
