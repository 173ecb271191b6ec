// Sums of several chunks, added in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// sums[part][chunk][unit], float32 (float64 for Dtype::f64), for all chunks into the first. Parts
// have room for `part_units`, of which units_of(part) are added.
//
// Threads share each part: of 64 to 64 channels, 3x3, all of 16 chunks are one part's, and one
// thread needs a tenth of the time that two need to compute them (28x28, batch 8, Zen 5).
template <class F>
void add_chunks(int threads, Dtype dtype, char* sums, int64_t parts, int64_t chunks,
                int64_t part_units, const F& units_of) {
  constexpr int64_t kPiece = 4096;         // that are added to stay in the first-level cache
  constexpr int64_t kSerialUnits = 32768;  // a parallel region costs as much
  const int64_t pieces = ceil_div(part_units, kPiece);
  if (parts * part_units * chunks < kSerialUnits) threads = 1;
  const auto add = [&](auto* all) {
    parallel_for(threads, parts * pieces, [&](int64_t i) {
      const int64_t part = i / pieces, first = i % pieces * kPiece;
      const int64_t count = std::min(kPiece, units_of(part) - first);
      auto* const to = all + part * chunks * part_units + first;
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        const auto* const from = to + chunk * part_units;
        for (int64_t j = 0; j < count; ++j) to[j] += from[j];
      }
    });
  };
  if (dtype == Dtype::f64)
    add(reinterpret_cast<double*>(sums));
  else
    add(reinterpret_cast<float*>(sums));
}

}  // namespace convtbw::simd
