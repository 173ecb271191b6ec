// Where the simd backend's dgrad computes windows apart from each other.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Whether dgrad's windows meet so little of x together, and sum over so many channels, that what
// each of them has for every tap is little work to add up, while most of x misses most taps.
inline bool windows_spread(const Problem& p) {
  const Geometry& g = p.geometry;
  auto windows = static_cast<double>(g.batch);  // of expanded tensors more than an integer holds
  for (const Axis& axis : g.axes) windows *= static_cast<double>(axis.y);
  return p.wanted == Role::x && spread(g) >= 2 && static_cast<double>(g.y_channels) >= 3 * windows;
}

}  // namespace convtbw
