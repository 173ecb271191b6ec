#include "backends/simd/phases.h"

#include <algorithm>
#include <numeric>

namespace convtbw::simd {

PhasedAxis images_axis(int64_t images) {
  return {images, 0, 1, {{{}, 0, images, 0, 1, 0, 1}}, true};
}

PhasedAxis fprop_axis(const Axis& a) {
  return {a.y, 0, 1, {{{a.k, -a.pad, a.stride, a.dilation}, 0, a.y, 0, 1, 0, 1}}, true};
}

// h + pad = u*stride + phase meets y at u - (k*dilation - phase) / stride, for every tap k whose
// k*dilation leaves the remainder `phase`. Descending k ascends in y.
PhasedAxis dgrad_axis(const Axis& a) {
  const int64_t s = a.stride, common = std::gcd(a.dilation, s), period = s / common;
  // Windows are counted from the first that any phase has.
  const int64_t first = floor_div(a.pad, s), last = floor_div(a.x - 1 + a.pad, s);
  PhasedAxis axis{last - first + 1, first * s - a.pad, s, {}, false};
  for (int64_t k = 0; k < std::min(a.k, period); ++k) {
    const int64_t phase = k * a.dilation % s;
    const int64_t begin = ceil_div(a.pad - phase, s), end = ceil_div(a.x + a.pad - phase, s);
    if (begin >= end) continue;
    const int64_t taps = (a.k - 1 - k) / period + 1, tap = k + (taps - 1) * period;
    axis.phases.push_back({{taps, first - (tap * a.dilation - phase) / s, 1, a.dilation / common},
                           begin - first,
                           end - first,
                           axis.out + phase,
                           s,
                           tap,
                           -period});
  }
  axis.complete = static_cast<int64_t>(axis.phases.size()) == s;
  return axis;
}

}  // namespace convtbw::simd
