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

inline int64_t pixels_of_x(const Geometry& g) {
  return g.batch * g.axes[0].x * g.axes[1].x * g.axes[2].x;
}

inline int64_t pixels_of_an_image(const Geometry& g) {
  return g.axes[0].y * g.axes[1].y * g.axes[2].y;
}

// 2-D depthwise problems of which oneDNN has kernels of their own: with dilations simd takes 0.03
// to 0.4 times as long, 0.3 to 0.6 where one tensor has its channels first and the other last.
inline bool has_depthwise_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  return g.rank == 2 && g.groups > 1 && g.x_channels == 1 && g.y_channels == 1 &&
         unit_dilations(g) && (p.x.channel == 1) == (p.y.channel == 1);
}

// One tap of stride 1, channels last: products of long rows, where channels are few.
inline bool many_pixels_of_one_tap(const Problem& p) {
  constexpr int64_t kManyPixels = 4096;
  return one_tap(p.geometry) && unit_strides(p.geometry) && has_channels_last(p) &&
         pixels_of_y(p.geometry) >= kManyPixels;
}

// Windows that are strides long, so that all phases of a row have as many taps.
inline bool whole_strides(const Axis& axis) { return axis.stride > 1 && axis.k % axis.stride == 0; }

inline bool widely_dilated(const Axis& axis) { return axis.k > 1 && axis.dilation >= 4; }

// Windows for which oneDNN, with few channels of x, has but products of matrices.
inline bool very_wide(const Axis& axis) { return (axis.k - 1) * axis.dilation >= 16; }

// So many images share the taps that windows at the same place of them miss: boxes of simd hold a
// few pixels of each (backends/simd/data_sizes.cpp).
constexpr int64_t kSeveralImages = 4;

// Whether oneDNN's sums of so many products err more than torch's, and by 1.36 to 2.7 times as much
// as a blocked gemm's (strides and dilations, AVX-512, Zen 4 and 5).
inline bool sums_long(const Geometry& g, int64_t channels) {
  constexpr int64_t kLongSum = 2048;
  return g.taps() * channels > kLongSum;
}

// Windows for which oneDNN in bfloat16 has but products of matrices.
inline bool padded_far(const Geometry& g) {
  return std::ranges::any_of(g.axes, [](const Axis& axis) { return axis.pad >= 16; });
}

}  // namespace convtbw
