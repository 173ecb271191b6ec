// The integers of a problem, and each formula that relates them, once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace convtbw {

inline constexpr int kMaxRank = 3;  // spatial axes

// One spatial axis. Tap k at position j of y meets position h = j*stride - pad + k*dilation of x;
// a tap whose h lies outside [0, x) is absent. Both extents are stored because neither determines
// the other: output_padding may reach max(stride, dilation) - 1, a stride leaves pixels over.
struct Axis {
  int64_t x = 1, k = 1, y = 1;
  int64_t stride = 1, pad = 0, dilation = 1;  // dilation 1 = dense

  bool operator==(const Axis&) const = default;
};

// One tap at every position.
constexpr bool pointwise(const Axis& a) {
  return a.k == 1 && a.stride == 1 && a.pad == 0 && a.x == a.y;
}

// Axes are right-aligned: a 1-D problem uses axes[2] and leaves the others at extent 1, so that
// loops over all three axes serve every rank.
struct Geometry {
  int64_t batch = 0, groups = 1;
  int64_t x_channels = 0, y_channels = 0;  // per group
  int rank = 0;
  std::array<Axis, kMaxRank> axes;

  bool operator==(const Geometry&) const = default;
  int64_t taps() const { return axes[0].k * axes[1].k * axes[2].k; }
};

inline bool unit_strides(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.stride == 1; });
}

// Windows do not overlap.
inline bool apart(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.k <= axis.stride; });
}

// Of all images.
inline int64_t pixels_of_y(const Geometry& g) {
  int64_t pixels = g.batch;
  for (const Axis& axis : g.axes) pixels *= axis.y;
  return pixels;
}

// How many times as many pixels x has as there are windows, strides apart: a dgrad that gives every
// pixel of x all taps computes so many times the products.
inline double spread(const Geometry& g) {
  double spread = 1;
  for (const Axis& axis : g.axes)
    spread *= static_cast<double>(axis.x) / static_cast<double>(axis.stride * axis.y);
  return spread;
}

// Half-open; empty when begin >= end.
struct Range {
  int64_t begin, end;

  bool operator==(const Range&) const = default;
};

// Rounds towards minus infinity, for a positive divisor. (C++ truncates, Python and SymInt floor.)
constexpr int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// Positions j of y that tap k of the axis brings to positions h of x inside `h_range`, within [0,
// y).
constexpr Range incident(const Axis& axis, int64_t k, Range h_range) {
  const int64_t shift = axis.pad - k * axis.dilation;  // j*stride = h + shift
  return {std::max<int64_t>(0, floor_div(h_range.begin + shift + axis.stride - 1, axis.stride)),
          std::min(axis.y, floor_div(h_range.end - 1 + shift, axis.stride) + 1)};
}

// Of all taps of all windows of the axis, those that meet x.
constexpr int64_t present_taps(const Axis& axis) {
  int64_t taps = 0;
  for (int64_t k = 0; k < axis.k; ++k) {
    const Range windows = incident(axis, k, {0, axis.x});
    taps += std::max<int64_t>(0, windows.end - windows.begin);
  }
  return taps;
}

// Of all taps of all windows the part that meets x.
inline double present_part(const Geometry& g) {
  double present = 1;
  for (const Axis& axis : g.axes)
    present *= static_cast<double>(present_taps(axis)) / static_cast<double>(axis.k * axis.y);
  return present;
}

// The extent of a dilated kernel window. Int is int64_t or SymInt, here and below.
template <class Int>
Int effective_kernel(const Int& k, int64_t dilation) {
  return (k - 1) * dilation + 1;
}

// How many positions y a window of extent ek has over x. Requires ek <= x + pads: the division of
// int64_t truncates where that of SymInt floors.
template <class Int>
Int windows(const Int& x, const Int& pads, const Int& ek, int64_t stride) {
  return (x + pads - ek) / stride + 1;
}

// The extent that a transposed convolution reaches from y positions, before output_padding.
template <class Int>
Int reach(const Int& y, const Int& pads, const Int& ek, int64_t stride) {
  return (y - 1) * stride + ek - pads;
}

}  // namespace convtbw
