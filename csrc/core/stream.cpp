#include "core/stream.h"

#include <algorithm>
#include <cstring>

#include "core/scratch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace convtbw {

#if defined(__x86_64__)

namespace {

// Whole lines. Halves of a line, one after the other, are as fast as lines of AVX-512; quarters
// take 1.4 times as long.
__attribute__((target("avx"))) void stream_lines(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += sizeof(__m256i)) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), half);
  }
}

}  // namespace

bool gains_by_streams(int threads) {
  return threads > 1 && __builtin_cpu_is("amd") && __builtin_cpu_supports("avx");
}

void stream(void* to, const void* from, int64_t bytes) {
  auto* const first = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  const auto misplaced = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(first) % kLineBytes);
  const int64_t head = __builtin_cpu_supports("avx") ? std::min(misplaced, bytes) : bytes;
  const int64_t lines = (bytes - head) / kLineBytes * kLineBytes, done = head + lines;
  std::memcpy(first, source, head);
  stream_lines(first + head, source + head, lines);
  std::memcpy(first + done, source + done, bytes - done);
}

#else

bool gains_by_streams(int) { return false; }
void stream(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace convtbw
