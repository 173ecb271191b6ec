#include "backends/simd/far_bytes.h"

#include "core/cpu.h"

namespace convtbw::simd {

namespace {

// Times of asking for nothing over those of asking, Zen 5 with 32 MB of third-level cache:
// - planes, 3x3 to 7x7: 9 and 14 MB 0.85 to 1.0, 18 to 23 0.85 to 1.25, 37 to 74 1.0 to 1.35;
// - weights, 3x3 and 4x4 of stride 2: up to 14 MB 0.75 to 0.9, 19 to 24 0.8 to 1.25, from 29 on 1.0
//   to 2;
// - reads, 3x3: up to 11 MB 0.9 to 1.0, from 14 MB on 1.05 to 1.3 with 16 lanes (with 8 0.85 to
//   1.15), 4x4 of stride 2 1.1 to 1.25 of 17 MB;
// - writes: up to 5 MB 0.9 to 1.0, from 7 MB on 1.05 to 1.6; of bands, which
//   asked for those of the next rows, from 25 MB on 0.75 to 0.9.
constexpr FarBytes kFarBytes{16 << 20, 18 << 20, 12 << 20, 6 << 20, 12 << 20};

// The same for Zen 3 and 4, measured on Zen 4 with 1 MB of second-level cache for each of two
// threads, and 32 of third-level cache, 3x3 to 7x7, 4x4 of stride 2 and 16x16 of stride 8:
// - planes and weights up to 8 MB 0.8 to 1.2, 1.0 in the mean; 10 to 14 MB 0.9 to 3, 1.4 in the
//   mean;
// - reads and writes of 1 MB each 0.9 to 1.0, of 2 1.0 to 1.25, of 3 to 5 1.05 to 2.6, two thirds
//   of which by asking for writes alone;
// - writes of bands, 10 to 26 MB 0.97 to 1.24, 1.1 in the mean, of 39 MB 0.87 to 1.03.
constexpr FarBytes kFarBytesOfZen4{8 << 20, 8 << 20, 3 << 20, 2 << 20, 32 << 20};

}  // namespace

const FarBytes& far_bytes() { return is_zen_3_or_4() ? kFarBytesOfZen4 : kFarBytes; }

}  // namespace convtbw::simd
