// Depthwise problems, not on Zen 4 with AVX-512 (zen_4_groups.cpp).
#include <algorithm>

#include "core/cpu.h"
#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

// Whether simd's AVX-512 kernels compute several rows of results together (lane_bands.h).
bool may_be_in_bands(const Problem& p) {
  const Geometry& g = p.geometry;
  return unit_strides(g) && g.groups >= 16 && g.axes[2].k >= 3 && g.axes[2].k <= 11;
}

// Whether simd's dgrad loads a pixel of y once for all that its window meets (lane_scatter.h).
bool added_window_by_window(const Axis& row) { return row.stride == 2 && row.k >= 3 && row.k <= 7; }

}  // namespace

// 2-D depthwise problems in float32. Times of simd over oneDNN, AVX2 and AVX-512 kernels of both,
// two threads of Zen 5 (channels first also one of Zen 4), 21 to 960 channels of 7x7 to 112x112:
// - channels last, stride 1, AVX-512 in bands: fprop 0.45 to 1.1, 0.75 in the mean, dgrad 0.3 to
//   1.1, 0.7 in the mean (130 layers of 16 channels and more); k3 of 1024 channels 1.05 to 1.35,
//   but dgrad of 7x7 0.75;
// - channels last, fprop with stride 1: k3 0.7 to 1.1, k5 and k7 0.5 to 1.1; with strides: k3 0.95
//   to 2, 0.85 to 1.3; k5 0.7 to 1.05, 0.75 to 1.0 (small ones, AVX-512, 1.1 to 1.4); 21 channels
//   0.8 to 1.15, 1.0 to 1.4, 16x16 of stride 8 and 8x8 of 4 0.55 to 0.75, 0.65 to 0.95;
// - channels last, dgrad with stride 1: k3 0.6 to 1.0, up to 12 MB with many channels or from 56x56
//   on 1.05 to 1.3; k5 and k7 0.35 to 1.1; with strides 0.9 to 3.3, 0.75 to 2.8, 8 to 24 channels
//   1.02 to 1.6, 1.05 to 1.95;
// - channels last, wgrad: k3 0.3 to 1.05, 0.5 to 1.1, but AVX-512 with strides, from 256 channels
//   on, 1.05 to 1.45; other kernels 0.05 to 0.5;
// - channels first, fprop, 3x3 to 7x7 of 7x7 to 56x56, 1 to 16 images: 0.5 to 1.05, but 7x7 of 7x7
//   and 8x8 1.0 to 1.5 (AVX-512 kernels, stride 1, 0.8 to 0.95); larger kernels 0.05 to 0.9; dgrad
//   0.4 to 1.05 (one image with strides up to 1.5); wgrad 0.05 to 1.0.
// Two threads of Zen 4, channels last: fprop with strides, from 8 MB on, 0.5 to 0.95 (of
// 14x14 1.2); dgrad with stride 1 from 12 MB of y on 0.5 to 1.0, from 8 on 0.6 to 1.25; dgrad of
// 16x16 with stride 8, 21 channels, 0.55 to 0.75; wgrad of 3x3 with strides, from 8 MB on, 0.5 to
// 0.9. With AVX2 since runs of taps keep their sums in registers (lanes.h): 21 channels, fprop 0.66
// to 0.95, dgrad 0.76 to 0.92. dgrad with strides of 2, window by window (lane_scatter.h), both
// kernels: up to 4x4 0.6 to 1.1, 0.9 in the mean, but from 384 channels on 0.9 to 2.2; larger
// kernels 0.65 to 1.1, 0.85 in the mean.
// Two threads of Zen 3, channels last, from 1 MFLOP on: one tap 1.1 to 2.0; fprop with strides, up
// to 4x4, of any size 0.8 to 1.5, 1.1 in the mean, 5x5 0.75 to 0.9; dgrad with strides up to 4x4
// 0.85 to 3.1, 1.2 in the mean, larger kernels 0.45 to 1.2, 0.85 in the mean.
bool suits_depthwise_kernels(const Problem& p, bool avx512) {
  if (p.dtype != Dtype::f32 || !has_depthwise_kernels(p)) return false;
  const bool far = is_zen_4() && data_bytes_of_both(p) > 8 << 20;
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t taps = rows.k * columns.k;
  const bool small = columns.y <= 16, strides = !unit_strides(g);
  const bool few_groups = g.groups < 32;
  if (p.x.channel != 1) {
    return p.wanted == Role::y && columns.y <= 8 && rows.k == 7 && columns.k == 7 &&
           (strides || !avx512) && !few_groups;
  }
  if (p.wanted == Role::w)
    return avx512 && strides && g.groups >= 256 && rows.k == 3 && columns.k == 3;
  if (avx512 && may_be_in_bands(p)) {
    constexpr int64_t kManyGroups = 1024, kTiny = 8;
    return taps == 9 && g.groups >= kManyGroups && (columns.y > kTiny || p.wanted == Role::y);
  }
  if (is_zen_3() && taps == 1 && !strides) return true;
  if (few_groups && !avx512) return is_zen_5() && p.wanted == Role::x && strides;
  if (p.wanted == Role::x) {
    if (few_groups) return !(is_zen_3_or_4() && columns.k > 8 && g.groups % 8 != 0);
    if (strides && is_zen_3()) return rows.k <= 4 && columns.k <= 4;
    if (is_zen_4() && added_window_by_window(columns)) return taps <= 16 && g.groups >= 384;
    if (strides) return ceil_div(rows.k, rows.stride) * ceil_div(columns.k, columns.stride) <= 25;
    if (data_bytes(p, Role::y) > 12 << 20) return false;
    return avx512 ? !small && taps <= 25 : taps <= 9 && (g.groups >= 256 || columns.y >= 40);
  }
  if (avx512 && small && !few_groups) return strides || taps > 9;
  const auto by_half = [](const Axis& axis) { return axis.k == 2 * axis.stride; };
  const bool overlapping = by_half(rows) && by_half(columns) && columns.stride > 2;
  return strides && !far && (few_groups ? !overlapping : taps <= 16);
}

// 2-D depthwise problems in bfloat16 on CPUs with its dot products, channels last. Times of simd
// over oneDNN, two threads of Zen 4, 24 to 960 channels of 7x7 to 112x112: fprop of 3x3 0.65
// to 1.1, of 14x14 1.0 to 1.3, with strides 0.8 to 1.3; dgrad of 3x3 0.55 to 1.15, of 14x14 1.1;
// 5x5 and 7x7 0.5 to 1.0; dgrad with strides has no kernel; wgrad of 3x3 0.2 to 1.1. Channels first
// 0.3 to 0.95. With stride 1 in bands (lane_bands.h, Zen 5), up to 16x16: up to 256 channels 0.75
// to 0.95, from 512 on 0.93 to 1.55.
bool suits_bfloat16_depthwise_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (!has_bfloat16_products() || p.dtype != Dtype::bf16 || !has_depthwise_kernels(p) ||
      g.groups < 32 || p.x.channel != 1)
    return false;
  constexpr int64_t kManyGroups = 512;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  if (rows.k > 3 || columns.k > 3 || p.wanted == Role::w) return false;
  return unit_strides(g) ? columns.y <= 16 && g.groups >= kManyGroups : p.wanted == Role::y;
}

}  // namespace convtbw
