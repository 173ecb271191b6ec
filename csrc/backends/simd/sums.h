// Sums of several chunks, added in an order that depends on their number alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backends/simd/kernels.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "core/problem.h"

namespace convtbw::simd {

// By the bits of the exponents, several at a time: of 37632 sums asked one by one it took a fifth
// of a weights gradient (256 to 3 channels, 16x16, k7, Zen 4).
template <class Bits>
bool all_below(Bits exponent, const char* sums, int64_t count) {
  Bits other = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, sums + i * int64_t{sizeof(Bits)}, sizeof(Bits));
    other |= Bits{(bits & exponent) == exponent};
  }
  return other == 0;
}

// Whether so many are: float64 for Dtype::f64, or else float32.
inline bool all_finite(const char* sums, int64_t count, Dtype dtype) {
  return dtype == Dtype::f64 ? all_below(uint64_t{0x7ff} << 52, sums, count)
                             : all_below(uint32_t{0xff} << 23, sums, count);
}

// sums[part][chunk][unit], float32 (float64 for Dtype::f64). Parts have room for so many units, of
// which units_of(part) are there.
struct ChunkedSums {
  Dtype dtype;
  char* sums;
  int64_t parts, chunks, part_units;
};

inline constexpr int64_t kAddedUnits = 4096;  // at a time, to stay in the first-level cache

// A piece of the first `units` of a part: of so many chunks, so far apart, into the first one.
inline void add_piece(const ChunkedSums& all, int64_t part, int64_t units, int64_t piece,
                      int64_t first, int64_t step, int64_t count) {
  const int64_t begin = piece * kAddedUnits, end = std::min(begin + kAddedUnits, units);
  const auto add = [&](auto* sums) {
    auto* const to = sums + (part * all.chunks + first) * all.part_units;
    for (int64_t chunk = 1; chunk < count; ++chunk) {
      const auto* const from = to + chunk * step * all.part_units;
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  };
  if (all.dtype == Dtype::f64)
    add(reinterpret_cast<double*>(all.sums));
  else
    add(reinterpret_cast<float*>(all.sums));
}

// Adds every step-th chunk of each part into the first one. Threads share each part: of 64 to 64
// channels, 3x3, all of 16 chunks are one part's, and one thread needs a tenth of the time that two
// need to compute them (28x28, batch 8, Zen 5).
template <class UnitsOf>
void add_chunks(int threads, const ChunkedSums& all, const UnitsOf& units_of, int64_t step = 1) {
  constexpr int64_t kSerialUnits = 32768;  // a parallel region costs as much
  const int64_t count = ceil_div(all.chunks, step);
  const int64_t pieces = ceil_div(all.part_units, kAddedUnits);
  if (count == 1) return;
  if (all.parts * all.part_units * count < kSerialUnits) threads = 1;
  parallel_for(threads, all.parts * pieces, [&](int64_t i) {
    add_piece(all, i / pieces, units_of(i / pieces), i % pieces, 0, step, count);
  });
}

// compute(part, chunk, its sums) for all, added into those of each part's first chunk.
//
// Chunks that follow each other are added by the thread that completes them, which has computed
// them all as a rule; the few sums that remain, by all threads. These are lines that one thread
// writes and another reads, call after call, and the next store to such a line is slow
// (core/stream.h).
template <class UnitsOf, class Compute>
void sum_chunks(int threads, const ChunkedSums& all, const UnitsOf& units_of,
                const Compute& compute) {
  constexpr int64_t kRuns = 4;  // of a part's chunks, and so sums that remain
  const int64_t chunks = all.chunks, of_run = ceil_div(chunks, kRuns);
  const int64_t runs = ceil_div(chunks, of_run);
  const int64_t chunk_bytes = all.part_units * element_bytes(sum_dtype(all.dtype));
  std::vector<std::atomic<int64_t>> completed(all.parts * runs);  // chunks of each run
  parallel_for(threads, all.parts * chunks, [&](int64_t i) {
    const int64_t part = i / chunks, chunk = i % chunks, run = chunk / of_run;
    compute(part, chunk, all.sums + i * chunk_bytes);
    const int64_t first = run * of_run, count = std::min(of_run, chunks - first);
    if (completed[part * runs + run].fetch_add(1) + 1 < count) return;
    const int64_t units = units_of(part);
    for (int64_t piece = 0; piece * kAddedUnits < units; ++piece)
      add_piece(all, part, units, piece, first, 1, count);
  });
  add_chunks(threads, all, units_of, of_run);
}

}  // namespace convtbw::simd
