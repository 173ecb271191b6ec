#include <algorithm>

#include "backends/simd/far_bytes.h"
#include "backends/simd/kernels.h"
#include "backends/simd/rules/rules.h"
#include "core/cpu.h"

namespace convtbw::simd {

namespace {

// Whether a channel's rows can be slid over: of depthwise problems, channels first.
bool depthwise_planes(const Problem& p) {
  const Geometry& g = p.geometry;
  if (g.x_channels != 1 || g.y_channels != 1 || p.slices > 1) return false;
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1 || p.x.channel == 1 || p.y.channel == 1)
    return false;
  for (const Axis& axis : g.axes)
    if (axis.k < axis.stride) return false;
  if (g.axes[1].k > 1 && g.axes[1].dilation > 1) return false;
  // What one window meets is copied with all that lies between.
  constexpr int64_t kMostPositions = 16 << 10;
  int64_t positions = 1;
  for (const Axis& axis : g.axes) {
    const int64_t extent = effective_kernel(axis.k, axis.dilation);
    if (extent > kMostPositions / positions) return false;
    positions *= extent;
  }
  return true;
}

// What planes() says of wgrad, rows of stride 1, 16 lanes. Time of channels in lanes over that of
// pixels (Zen 4, 24 to 512 channels; rows that fill 7 of 8 lanes):
// - float32 3x3 of 28x28 and more 1.12 to 1.4, of 33x33 to 52x52 that fill fewer 0.96 to 1.56, of
//   24x24 and 26x26 0.9; 5x5 to 11x11 1.0 to 1.16, that fill fewer 0.8 to 1.02; 3x3x3 whole 1.09 to
//   1.7, others 0.85 to 1.07;
// - float16 3x3 1.05 to 1.45; 5x5 and 7x7 whole 1.2 to 1.36, others 0.77 to 1.09; 3x3x3 whole 1.1
//   to 1.3, others 0.86 to 0.96;
// - pairs of bfloat16 3x3 of whole halves of lines 1.15 to 1.36, of other rows 0.82 to 1.34; 5x5 to
//   11x11 0.54 to 1.1, 3x3x3 0.67 to 0.97.
bool planes_of_weights_on_zen_4(const Problem& p) {
  const auto& [depth, rows, row] = p.geometry.axes;
  const int64_t windows = row.y, lanes = 16, padded = (windows + lanes - 1) / lanes * lanes;
  const bool few_taps = rows.k * row.k < 15;
  if (p.dtype == Dtype::bf16) return depth.k == 1 && few_taps && windows % 32 == 0;
  if (windows < 28) return false;
  if (depth.k > 1 || (p.dtype == Dtype::f16 && !few_taps)) return windows == padded;
  return 8 * windows >= 7 * padded || (few_taps && windows >= 32);
}

}  // namespace

// Whether lanes should be pixels or taps of one channel, so that nothing is transposed. Time of
// these over that of channels in lanes (Zen 5, 64 to 192 channels; "whole": windows that fill
// vectors):
// - 8 lanes, wgrad: 24x24 0.76 to 0.95, 25 to 31 3x3 0.94 and others 1.06, from 32x32 on 0.7 to
//   0.85; 3x3x3 of 32x32 1.0; bfloat16 0.76 to 0.95;
// - 8 lanes, fprop and dgrad: 3x3 from 20x20 on 0.7 to 0.85, 16 bits from 24x24 on 0.7 to 0.98,
//   3x3x3 of 28x28 1.1, 32x32 0.75; 5x5 and 7x7 of 24x24 0.9, 28x28 1.16, from 32x32 on 0.75 to
//   0.98, 16 bits 1.01 to 1.1, from 40x40 on 0.67 to 1.0;
// - 16 lanes, of whose loads half cross lines, wgrad from 32x32 on: whole 3x3 0.64 to 0.75, float16
//   0.83 to 0.99, 5x5 and 7x7 0.88 to 1.03, float16 1.03 to 1.2; others 1.09 to 1.25;
// - 16 lanes, fprop and dgrad, channels in bands (lane_bands.h): 3x3 of 16x16 and 20x20 0.7 to
//   1.25, from 24x24 on 0.55 to 0.98 (16 bits behind the caches 1.03 to 1.12), 4x4 from 28x28 on
//   0.88 to 0.98, 16 bits 0.95 to 1.15; 5x5 and 7x7 from 32x32 on whole 0.8 to 1.0, others up to
//   56x56 1.06 to 1.16, larger 0.84 to 1.0; 16 bits of 64x64 and 128x128 0.72 to 0.97, bfloat16 7x7
//   0.97 to 1.09, others 0.92 to 1.45; 9x9 to 13x13 0.78 to 1.02 from 32x32, float16 from 48x48 on,
//   bfloat16 1.07 to 1.55; 2x2 from 28x28 on 0.56 to 0.8 (Zen 4); 3x3x3 up to 28x28 0.95 to
//   1.45, from 32x32 on 0.67 to 0.91, 16 bits whole 0.74 to 0.98, others 1.0 to 1.3;
// - 1-D, wgrad: 8 lanes up to k9 0.68 to 0.97, 16 bits from 512 on 0.76 to 1.0; 16 lanes up to k5
//   0.7 to 0.93, k9 0.89 to 1.07, 16 bits 0.92 to 1.6;
// - 1-D, fprop and dgrad: 8 lanes up to k7 0.81 to 1.09, k9 0.93 to 1.09, 16 bits up to k5 from 512
//   on 0.77 to 0.88, k7 0.93 to 1.01; 16 lanes up to k9 0.81 to 0.94, k15 1.16, 16 bits up to k5
//   from 1000 on 0.8 to 0.93, of 512 0.92 to 1.06, k7 0.96 to 1.06;
// - a stride of 2, wgrad: 8 lanes, from 20 windows on 0.47 to 0.99; 16 lanes, from 24 on 3x3 to 5x5
//   0.54 to 1.09 (bfloat16 5x5 0.9 to 1.3), 7x7 0.96 to 1.8; 1-D 0.6 to 0.9, k31 1.1;
// - a stride of 2, fprop: 8 lanes, 4x4 to 7x7 from 24 to 64 windows 0.62 to 1.0, 16 bits up to 32
//   0.63 to 1.1, more 1.02 to 1.2; 3x3 0.89 to 1.35; 16 lanes, from 28 windows on 0.81 to 1.03, 16
//   bits 0.93 to 2.2;
// - a stride of 4: k8 0.8 to 0.95; any lanes: k16 of stride 8 on 512x512 0.35 to 0.4;
// - 2 channels 0.06 to 0.2.
bool planes(const Problem& p, int64_t lanes) {
  if (!depthwise_planes(p)) return false;
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
  if (p.wanted == Role::x && has_strides(g)) return false;
  const bool wgrad = p.wanted == Role::w, wide = lanes > 8;
  const int64_t windows = p.wanted == Role::x ? row.x : row.y, taps = rows.k * row.k;
  if (row.stride > 2) {
    // Windows that reach beyond the ends of a row are copied, all of them at a time.
    const int64_t behind = (row.y - 1) * row.stride + row.k - row.pad - row.x;
    return windows >= lanes && row.dilation == 1 && row.k % lanes == 0 && 2 * row.stride >= lanes &&
           (rows.k > 1 || row.k > lanes) && std::max(row.pad, behind) <= row.k;
  }
  if (3 * g.groups <= 2 * lanes) return windows >= lanes;
  const bool halves = p.dtype == Dtype::bf16 || p.dtype == Dtype::f16;
  if (row.stride == 2 && wgrad) {
    if (!wide) return windows >= 16;
    return windows >= 24 && (rows.k > 1 ? taps <= (p.dtype == Dtype::bf16 ? 16 : 25) : row.k <= 16);
  }
  if (row.stride == 2) {
    if (rows.k == 1 || taps < 15) return false;
    return wide ? !halves && windows >= 28 : windows >= 24 && windows <= (halves ? 32 : 64);
  }
  if (rows.k == 1) {
    if (windows < (halves ? 64 : 32) * lanes) return false;
    if (wgrad) return row.k <= (wide ? 5 : 9) && !(wide && halves);
    return row.k <= (halves ? 5 : wide ? 9 : 7);
  }
  const bool whole = windows % lanes == 0;
  if (wide && wgrad && is_zen_4()) return planes_of_weights_on_zen_4(p);
  if (wide && wgrad)
    return windows >= 32 && whole && depth.k == 1 && p.dtype != Dtype::bf16 &&
           (!halves || taps < 15);
  if (wide) {
    // Channels that lie a multiple of 256 bytes apart are slowly transposed.
    const bool apart = windows % 64 == 0;
    const bool far = data_bytes_of_both(p) > far_bytes().planes;
    if (depth.k > 1) return windows >= 32 && (whole || (!halves && !far));
    if (row.k < 3) return windows >= (rows.k == 2 ? 28 : 48);  // not in bands
    if (row.k > 7) return p.dtype != Dtype::bf16 && windows >= (halves ? 48 : 32);
    if (rows.k == row.k && row.k <= (halves ? 3 : 4))
      return windows >= 24 && (!halves || !far || apart);
    if (halves) return apart && (p.dtype != Dtype::bf16 || rows.k <= 5);
    return whole ? windows >= 32 : windows >= 80;
  }
  if (wgrad) return windows >= (depth.k == 1 && (whole || taps < 15) ? 24 : 32);
  if (taps >= 15) return windows >= (halves ? 40 : whole ? 24 : 32);
  if (rows.k == 3 && row.k == 3) return windows >= (!halves ? 20 : depth.k > 1 ? 32 : 24);
  return !halves && windows >= 40;
}

// Whether the same should be done phase by phase of dgrad with strides. Time of it over that of
// channels in lanes (Zen 4, 12 to 64 windows a row; float32, 16 bits; "whole": windows that fill
// vectors):
// - channels that leave lanes empty: 1 to 7 0.17 to 0.7 (8 lanes 0.25 to 0.92); 10 to 33, 16 lanes
//   0.29 to 0.96, from 24 windows on if these are no whole strides long (of 16 1.3); 8 lanes up to
//   12 0.44 to 0.98, up to 33 0.45 to 1.44;
// - others, 21 to 256, and a stride of 8, k16 and k24: 0.6 to 1.0, 0.5 to 0.85;
// - 6 and 7, 16 lanes: whole 0.56 to 0.92, others 0.9 to 1.14, 0.67 to 0.9; 8 lanes 0.7 to 1.02,
//   0.6 to 0.9;
// - 4 and 5, 16 lanes: whole 0.62 to 0.81, others from 28 on 0.76 to 1.06, 0.47 to 0.9; 8 lanes
//   0.65 to 1.17, 0.59 to 0.9;
// - 3, k6 of 28 and more 0.79 to 1.04, 0.36 to 0.83; k9 0.65 to 1.5;
// - 2, k4 and k6: of 32 and 64 0.68 to 1.01 (once 1.29), 0.67 to 0.77; others 0.93 to 1.6;
//   k4x4x4, 16 lanes whole 0.56 to 0.78, others up to 1.3, 0.86; 8 lanes 0.67 to 0.88;
// - less than 12 windows, windows that are no whole strides long, or one stride: up to 5; rows
//   alone with a stride, which channels without empty lanes leave 0.92 to 1.86.
bool plane_phases(const Problem& p, int64_t lanes) {
  if (p.wanted != Role::x || !depthwise_planes(p)) return false;
  const auto& [depth, rows, row] = p.geometry.axes;
  bool whole_strides = true;
  for (const Axis& axis : p.geometry.axes) {
    if (axis.dilation > 1) return false;
    whole_strides &= axis.k % axis.stride == 0;
  }
  const int64_t stride = row.stride, windows = ceil_div(row.x, stride);
  if (!has_strides(p.geometry) || stride > kMaxTurnParts || windows < 12) return false;

  const bool halves = p.dtype == Dtype::bf16 || p.dtype == Dtype::f16, wide = lanes > 8;
  const int64_t groups = p.geometry.groups, padded = ceil_div(groups, lanes) * lanes;
  // 8 channels are a vector of half as many lanes.
  const bool empty_lanes =
      wide ? groups % 8 != 0 && 4 * groups <= 3 * padded : 3 * groups <= 2 * padded;
  if (empty_lanes) return whole_strides || windows >= 24;

  if (stride == 1 || !whole_strides || rows.k < 2 * rows.stride || row.k < 2 * stride) return false;
  const bool whole = windows % lanes == 0;
  if (stride == 8) return true;
  if (depth.k > 1) return whole || halves || !wide;
  if (stride == 2) return row.k <= 6 && windows % 32 == 0;
  if (stride == 3) return row.k == 6 && windows >= 28;
  if (halves) return windows >= 16;
  if (whole) return wide || stride > 5;
  return wide ? stride < 6 && windows >= 28 : stride > 5;
}

}  // namespace convtbw::simd
