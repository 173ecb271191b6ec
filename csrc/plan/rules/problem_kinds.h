// What the rules ask of a problem.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"

namespace convtbw {

// By the side that has several: one channel lies alike in both formats.
inline bool has_channels_last(const Problem& p) {
  return (p.geometry.groups * p.geometry.x_channels > 1 ? p.x : p.y).channel == 1;
}

// Of a vector of float32.
constexpr int64_t lanes_of(bool avx512) { return avx512 ? 16 : 8; }

// Along every axis.
inline bool taps_up_to(const Geometry& g, int64_t most) {
  return std::ranges::all_of(g.axes, [&](const Axis& axis) { return axis.k <= most; });
}

inline bool one_tap(const Geometry& g) { return taps_up_to(g, 1); }

inline bool unit_dilations(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.dilation == 1; });
}

// Windows for which oneDNN, with few channels of x, has but products of matrices.
inline bool very_wide(const Axis& axis) { return (axis.k - 1) * axis.dilation >= 16; }

// So many images share the taps that windows at the same place of them miss: boxes of simd hold a
// few pixels of each (backends/simd/data_sizes.cpp).
constexpr int64_t kSeveralImages = 4;

// fprop and dgrad of few small images, whose windows miss many taps: oneDNN's kernels multiply none
// of these, simd's those of a row where there are no other images whose windows miss the same.
// Times of simd over oneDNN, AVX-512 kernels of both, float32 and bfloat16, two layouts, two
// threads of Zen 4, of 64 to 128 channels, 7x7 and 9x9 of 12x12 to 20x20: 1 to 3 images 0.9
// to 1.35, 1.1 in the mean; 4 images and more 0.8 to 1.2, 0.99; 3x3 of 2x2 to 5x5 0.3 to 1.45.
inline bool misses_taps(const Problem& p) {
  constexpr int64_t kLeastChannels = 32, kLeastPixels = 300, kLeastTaps = 25, kWidest = 9;
  constexpr double kMostPresent = 0.8;
  const Geometry& g = p.geometry;
  return p.wanted != Role::w && g.rank == 2 && g.batch < kSeveralImages && g.taps() >= kLeastTaps &&
         taps_up_to(g, kWidest) && unit_strides(g) && unit_dilations(g) &&
         std::min(g.x_channels, g.y_channels) >= kLeastChannels && pixels_of_y(g) >= kLeastPixels &&
         present_part(g) < kMostPresent;
}

// Windows for which oneDNN in bfloat16 has but products of matrices.
inline bool padded_far(const Geometry& g) {
  return std::ranges::any_of(g.axes, [](const Axis& axis) { return axis.pad >= 16; });
}

}  // namespace convtbw
