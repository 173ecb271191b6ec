// Windows that reach beyond the operand: with their absent taps left out, 7x7 pixels under 3x3
// taps are a seventh less work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/simd/windows.h"
#include "core/geometry.h"

namespace convtbw::simd {

// The taps of a window that lie in an operand of this extent.
inline Range present_taps(const Sliding& s, int64_t extent, int64_t window) {
  const int64_t first = s.first + window * s.stride;
  const int64_t begin = std::clamp<int64_t>(ceil_div(-first, s.dilation), 0, s.taps);
  return {begin, std::clamp<int64_t>(floor_div(extent - 1 - first, s.dilation) + 1, begin, s.taps)};
}

// Those of so many windows that have no absent tap.
inline Range whole_windows(const Sliding& s, int64_t extent, int64_t windows) {
  const int64_t begin = std::clamp<int64_t>(ceil_div(-s.first, s.stride), 0, windows);
  const int64_t last = floor_div(extent - 1 - s.first - (s.taps - 1) * s.dilation, s.stride);
  return {begin, std::clamp<int64_t>(last + 1, begin, windows)};
}

// f(range of windows, their taps), for ranges as long as these are the same.
template <class F>
void for_each_edge(const Sliding& s, int64_t extent, const Range& windows, const F& f) {
  const int64_t last_whole = floor_div(extent - 1 - s.first - (s.taps - 1) * s.dilation, s.stride);
  for (int64_t begin = windows.begin, end; begin < windows.end; begin = end) {
    const Range taps = present_taps(s, extent, begin);
    end = begin + 1;
    if (taps.begin == 0 && taps.end == s.taps)
      end = std::clamp(last_whole + 1, end, windows.end);
    else
      while (end < windows.end && present_taps(s, extent, end) == taps) ++end;
    f(Range{begin, end}, taps);
  }
}

}  // namespace convtbw::simd
