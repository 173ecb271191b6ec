// Stores past the caches, into memory that one thread writes and others read, call after call. A
// plain store to a line that another core has read waits until that core gives it up: 2.3 GB/s
// between cores with third-level caches of their own (CCX), 7 to 10 with one that they share, if
// their second-level caches hold the lines; past the caches it is 20 to 35 (Zen 4). 512 to 256
// channels, 8x8, 4x4 of stride 2 took 1.2 times as long with two such cores, 1.0 with one cache.
#pragma once

#include <cstdint>

namespace convtbw {

// Whether so many threads gain by it. Other CPUs' caches are not measured.
bool gains_by_streams(int threads);

// Others see it after end_streams(), which parallel_for() calls.
void stream(void* to, const void* from, int64_t bytes);

inline void end_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace convtbw
