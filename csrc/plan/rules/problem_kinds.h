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

// The same in bfloat16.
inline bool padded_far(const Geometry& g) {
  return std::ranges::any_of(g.axes, [](const Axis& axis) { return axis.pad >= 16; });
}

}  // namespace convtbw
