#include "plan/preference.h"

#include <algorithm>

#include "core/cpu.h"
#include "core/winograd.h"
#include "plan/plan.h"

#if defined(CONVTBW_ONEDNN) && defined(__x86_64__)
#include <cpuid.h>
#endif

namespace convtbw {

#if defined(CONVTBW_ONEDNN) && defined(__x86_64__)

namespace {

// Matrix registers for bfloat16 (CPUID leaf 7, EDX bits 22 and 24).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

// By the side that has several: one channel lies alike in both formats.
bool has_channels_last(const Problem& p) {
  return (p.geometry.groups * p.geometry.x_channels > 1 ? p.x : p.y).channel == 1;
}

double data_bytes_of_both(const Problem& p) {
  return data_bytes(p, Role::x) + data_bytes(p, Role::y);
}

bool one_tap(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.k == 1; });
}

bool unit_strides(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.stride == 1; });
}

bool unit_dilations(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.dilation == 1; });
}

int64_t pixels_of_y(const Geometry& g) {
  int64_t pixels = g.batch;
  for (const Axis& axis : g.axes) pixels *= axis.y;
  return pixels;
}

// Windows do not overlap.
bool apart(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.k <= axis.stride; });
}

// 2-D depthwise problems of which oneDNN has kernels of their own: with dilations simd takes 0.03
// to 0.4 times as long, 0.3 to 0.6 where one tensor has its channels first and the other last.
bool has_depthwise_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  return g.rank == 2 && g.groups > 1 && g.x_channels == 1 && g.y_channels == 1 &&
         unit_dilations(g) && (p.x.channel == 1) == (p.y.channel == 1);
}

// 2-D depthwise problems in float32. Times of simd over oneDNN, AVX2 and AVX-512 kernels of both,
// two threads of Zen 5 (channels first also one of Zen 4), 21 to 960 channels of 7x7 to 112x112:
// - channels last, fprop with stride 1: k3 0.7 to 1.1, 0.65 to 1.15; k5 and k7 0.5 to 1.1, 0.75 to
//   1.05, but of 14x14 and smaller, AVX-512, 1.2 to 1.7; with strides: k3 0.95 to 2, 0.85 to 1.3;
//   k5 0.7 to 1.05, 0.75 to 1.0 (small ones, AVX-512, 1.1 to 1.4); 21 channels 0.8 to 1.15, 1.0
//   to 1.4, 16x16 of stride 8 and 8x8 of 4 0.55 to 0.75, 0.65 to 0.95;
// - channels last, dgrad with stride 1: k3 0.6 to 1.0, 0.55 to 1.0, up to 12 MB with many channels
//   or from 56x56 on 1.05 to 1.3, AVX-512 1.0 to 1.2, also k5 (small images 0.6 to 1.0); else k5
//   and k7 0.35 to 1.1, 0.6 to 1.2; 21 channels, AVX-512, 1.1 to 1.2; with strides 0.9 to 3.3, 0.75
//   to 2.8;
// - channels last, wgrad: k3 0.3 to 1.05, 0.5 to 1.1, but AVX-512 with strides, from 256 channels
//   on, 1.05 to 1.45; other kernels 0.05 to 0.5;
// - channels first, fprop up to 28x28: k3 0.85 to 1.2, k5 1.0 to 1.2, k7 1.1 to 2.3, with strides
//   0.8 to 1.2 (AVX-512 kernels, from k4 on, 1.0 to 2); 21 channels or larger images 0.4 to 1.1,
//   larger kernels 0.05 to 0.9; dgrad 0.5 to 1.0; wgrad 0.05 to 1.0.
// Two threads of Zen 4, channels last: fprop with strides, from 8 MB on, 0.5 to 0.95 (of
// 14x14 1.2); dgrad with stride 1 from 12 MB of y on 0.5 to 1.0, from 8 on 0.6 to 1.25; dgrad of
// 16x16 with stride 8, 21 channels, 0.55 to 0.75; wgrad of 3x3 with strides, from 8 MB on, 0.5 to
// 0.9. With AVX2 since runs of taps keep their sums in registers (lanes.h): 21 channels, fprop 0.66
// to 0.95, dgrad 0.76 to 0.92.
bool suits_depthwise_kernels(const Problem& p, bool avx512) {
  if (p.dtype != Dtype::f32 || !has_depthwise_kernels(p)) return false;
  const bool far = is_zen_3_or_4() && data_bytes_of_both(p) > 8 << 20;
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t taps = rows.k * columns.k;
  const bool small = columns.y <= 16, strides = !unit_strides(g);
  const bool few_groups = g.groups < 32;
  if (p.x.channel != 1)
    return p.wanted == Role::y && columns.y <= 28 && !few_groups && rows.k <= 7 && columns.k <= 7 &&
           (avx512 ? taps >= 16 : taps >= 25 && !strides);
  if (p.wanted == Role::w)
    return avx512 && !far && strides && g.groups >= 256 && rows.k == 3 && columns.k == 3;
  if (few_groups && !avx512) return false;
  if (p.wanted == Role::x) {
    if (few_groups) return !(is_zen_3_or_4() && columns.k > 8 && g.groups % 8 != 0);
    if (strides) return ceil_div(rows.k, rows.stride) * ceil_div(columns.k, columns.stride) <= 25;
    if (data_bytes(p, Role::y) > 12 << 20) return false;
    return avx512 ? !small && taps <= 25 : taps <= 9 && (g.groups >= 256 || columns.y >= 40);
  }
  if (avx512 && small && !few_groups) return strides || taps > 9;
  const auto by_half = [](const Axis& axis) { return axis.k == 2 * axis.stride; };
  const bool overlapping = by_half(rows) && by_half(columns) && columns.stride > 2;
  return strides && !far && (few_groups ? !overlapping : taps <= 16);
}

// Up to three of x, beside several taps.
bool has_few_channels(const Problem& p) {
  return p.geometry.x_channels <= 3 && p.wanted != Role::x && !one_tap(p.geometry);
}

// What follows for up to three channels of x, on Intel's CPUs with AVX-512. Times of simd over
// oneDNN, two threads of Ice Lake, 75 random layers of 1-D to 3-D into 8 to 96 channels:
// - wgrad, channels first, 0.15 to 1.0, in 3-D into up to 16 1.1 to 1.45; channels last, into up to
//   16 1.0 to 2.5, more 0.4 to 1.05, but few taps of 1 up to 64 1.1 to 1.5; 1-D 0.7 to 2.1;
// - fprop, channels first, in 2-D into 16 1.3 to 1.75, 24 to 32 0.75 to 1.05, with strides up to 32
//   0.9 to 1.7, 48 and more 0.7 to 1.0; in 3-D from 2 and 3 into 24 and more 0.75 to 0.95, other
//   ones 1.35 to 2; 1-D 1.25 to 3.2, into 24 0.85 to 0.95;
// - fprop, channels last, in 2-D into 48 and more, with strides or from 7x7 on, 0.65 to 0.9, other
//   ones 1.05 to 3.8; in 3-D 0.95 to 1.45; 1-D 1.2 to 2.6, k16 into 96 and more 0.75 to 0.85.
bool suits_few_channels_kernels_of_intel(const Problem& p) {
  const Geometry& g = p.geometry;
  const int64_t channels = g.y_channels;
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  if (p.wanted == Role::w) {
    if (!channels_last) return g.rank == 3 && channels <= 16;
    if (g.rank == 1) return channels >= 16;
    const int64_t taps = g.taps();
    return channels < 24 || (g.x_channels == 1 && channels <= 64 && taps <= 27);
  }
  if (g.rank == 1)
    return channels_last ? channels < 96 || g.axes[2].k < 16 : channels < 24 || channels >= 32;
  if (channels_last)
    return g.rank == 3 || channels < 48 || (!strides && g.axes[1].k * g.axes[2].k < 49);
  if (g.rank == 3) return g.x_channels == 1 || channels < 24;
  return strides ? channels < 48 : channels >= 16 && channels < 24;
}

// fprop of up to three channels of x, channels first, rows of stride 1 or 2, not on Intel's CPUs
// with AVX-512. Times of simd, whose lanes are pixels of a row mostly, over oneDNN, two threads of
// Zen 4, 270 random layers into 8 to 128 channels:
// - AVX-512 kernels of both: 1-D 0.25 to 0.95; into no multiple of 16 channels 0.2 to 0.95, rarely
//   up to 1.05; into one, rows of 60 and more, 32 and more in 3-D, 0.35 to 1.07, shorter ones 0.7
//   to 1.65, 1.15 in the mean;
// - AVX2 kernels of both: into no multiple of 8 channels 0.25 to 1.1; into one, in 2-D, rows of 40
//   and more up to 48 channels 0.4 to 1.05, shorter or into more 0.75 to 1.4; 1-D, up to 5 taps,
//   0.5 to 1.1, more 0.9 to 1.15; 3-D, up to 8 taps, 0.4 to 1.05, 27 1.0 to 1.15.
bool suits_few_channels_kernels_in_planes(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const int64_t channels = g.y_channels, pixels = g.axes[2].y, taps = g.taps();
  if (channels % (avx512 ? 16 : 8) != 0) return false;
  if (avx512) return g.rank > 1 && pixels < (g.rank == 2 ? 60 : 32);
  if (g.rank == 2) return pixels < 40 || channels > 48;
  return taps > (g.rank == 1 ? 5 : 8);
}

// Dense problems in float32 with up to three channels of x, whose taps fill vectors only after
// copies. Times of simd over oneDNN, k3 to k7 into 16 to 64 channels, one thread of Zen 4 and two
// of Zen 5:
// - fprop in 2-D 1.1 to 2.9, in 3-D 1.4 to 5; windows wider than 9, and AVX2 kernels of 9 (two
//   threads of Zen 4), 0.3 to 1.0, from one channel into 128 up to 1.5; into 8 channels, many taps
//   of two or three 0.65 to 0.85 (AVX-512 kernels, channels first, any taps), into fewer
//   0.3 to 0.7; in 3-D, channels last, of two or three channels, with strides or k5, 0.65 to 0.9;
// - wgrad, AVX-512 kernels of both, in 2-D 1.05 to 3, from 3 to 64 channels 0.9 to 1.25; in 3-D 1.2
//   to 8; k2 and more channels of y 0.2 to 0.8; two threads of Zen 4, channels last, k2 into 32
//   to 128 1.3 to 1.8, k4 of stride 4 1.06 to 1.17;
// - wgrad, AVX2 kernels of both, in 2-D, channels first, 1 and 2 channels 0.2 to 0.5, 3 channels up
//   to 4x4 1.0 to 1.6, else 0.6 to 1.1; channels last 1 channel 1.1 to 2.4, 2 up to 5x5 1.0 to 1.5;
//   with dilation 0.7 to 0.9; in 3-D 1 channel, k3, 1.3 to 2.2 on Zen 4 but 0.2 to 0.8 on Zen 5
//   (k5 0.7, k2 and strides 0.15 to 0.3), 3 channels 0.5 to 1.0;
// - one tap, channels first, 2 to 2 channels 0.06;
// - 1-D, two threads of Zen 5, k3 to k1024: fprop 1.0 to 4, but into 8 and 16 channels, many taps,
//   0.6 to 1.0, into 4, channels first, 0.7 to 1.0 (AVX-512 kernels into up to 24 0.7 to 1.1);
//   wgrad of 1 to 512 channels, k16 and k20 with strides, channels first, 1.0 to 1.45, all else 0.2
//   to 1.1.
bool suits_few_channels_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t taps = g.taps();
  const bool channels_last = has_channels_last(p);
  const auto wide = [&](const Axis& axis) {
    return (axis.k - 1) * axis.dilation > (avx512 ? 8 : 7);
  };
  if (!has_few_channels(p)) return false;
  if (p.wanted == Role::y && g.rank > 1 && (wide(rows) || wide(columns) || g.y_channels < 8))
    return false;
  if (avx512 && is_intel()) return suits_few_channels_kernels_of_intel(p);
  if (p.wanted == Role::y && !channels_last && columns.stride <= 2)
    return suits_few_channels_kernels_in_planes(p, avx512);
  if (g.rank == 1) {
    if (p.wanted == Role::w)
      return !avx512 && !channels_last && g.x_channels == 1 && g.y_channels >= 512 &&
             columns.stride > 1 && taps <= 20;
    if (avx512 && !channels_last && g.y_channels < 32) return false;
    return g.y_channels >= 24 || (g.y_channels >= 8 && taps * g.x_channels <= 44);
  }
  if (p.wanted == Role::y) {
    if (g.y_channels < 16 && (taps * g.x_channels > 64 || (avx512 && !channels_last))) return false;
    return g.rank == 2 || !channels_last || g.x_channels == 1 || (taps == 27 && rows.stride == 1);
  }
  if (avx512)
    return (g.y_channels <= 64 && taps >= 9) || (g.rank == 2 && channels_last && taps <= 16);
  if (rows.dilation > 1 || columns.dilation > 1 || g.rank == 3) return false;
  if (channels_last && g.x_channels < 3) return g.x_channels == 1 || taps <= 25;
  return g.x_channels == 3 && g.y_channels <= 32 && taps <= 16;
}

// Dense problems of one tap in float32, channels last, with few channels. Times of simd over
// oneDNN, AVX2 and AVX-512 kernels of both, two threads of Zen 5: up to 24 on both sides, fprop and
// dgrad 1.05 to 3.8, 1.05 to 5.5; wgrad, 3 and more, 1.1 to 10, 1.35 to 10, but into few channels
// of y from more of x 0.3 to 0.8, AVX-512 kernels only from 16 on 0.4 to 0.9; dgrad from 48 to 128
// channels into 4 to 12 1.05 to 1.65, 1.0 to 1.95. Of 1024 pixels 0.6 to 1.1. That is of 2-D; 1-D
// and 3-D alike (70 layers, two threads of Zen 4: 0.8 to 1.9, 0.95 to 3, wgrad up to 5.8).
bool suits_narrow_kernels(const Problem& p, bool avx512) {
  constexpr int64_t kLeastPixels = 4096;
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!one_tap(g) || !unit_strides(g) || !has_channels_last(p) || pixels_of_y(g) < kLeastPixels)
    return false;
  if (p.wanted == Role::x && g.x_channels >= 4 && g.x_channels < 16 && g.y_channels >= 24)
    return g.y_channels <= 128;
  if (more > 24) return false;
  if (p.wanted != Role::w || (avx512 && more < 16)) return true;
  if (g.x_channels <= g.y_channels) return few >= 3;
  return g.y_channels > 8 || (g.x_channels < 16 && g.y_channels > 4);
}

// fprop of dense problems in 1-D in float32, channels first. Times of simd over oneDNN, two threads
// of Zen 5: k3 to k7 1.05 to 1.3 with 48 channels of y and more (fewer 0.55 to 1.15; Zen 4, lanes
// of pixels mostly, 0.65 to 1.07); k16 s8 1.0 to 1.5 with 256 and 512 channels (Zen 4 1.6), 0.55
// to 1.0 with fewer; one tap 0.6 to 1.0; windows wider than 7 0.4 to 0.95. AVX-512 kernels of both:
// k3 and k4 1.0 to 1.2 with 48 channels and more, all else 0.55 to 1.0.
bool suits_sequence_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis& axis = g.axes.back();
  if (p.wanted != Role::y || has_channels_last(p) || axis.k == 1) return false;
  const int64_t channels = std::min(g.x_channels, g.y_channels);
  const bool narrow = (axis.k - 1) * axis.dilation <= 6;
  if (avx512) return narrow && axis.k <= 4 && channels >= 48;
  if (narrow) return !is_zen_3_or_4() && g.y_channels >= 48;
  return channels >= 256 && axis.dilation == 1;
}

// Dense problems in 3-D in float32 that are none for Winograd's filtering. Times of simd over
// oneDNN, AVX-512 kernels of both (AVX2 kernels 0.95 to 1.05, wgrad 0.3 to 0.8), two threads of
// Zen 4, 210 random layers of 8 to 128 channels:
// - fprop with strides, channels last, 1.08 to 1.44, once 0.93; channels first 0.7 to 1.2;
// - stride 1 from 16 channels on, k5: fprop and dgrad 1.05 to 1.3; wgrad 1.02 to 1.44, one tap,
//   channels last, 1.3; dgrad with strides 0.5 to 1.1; all from 8 channels 0.25 to 1.2;
// - wgrad with strides, channels last, k2 and k4 1.01 to 1.5, k3 0.65 to 1.27, 1.0 in the mean;
//   channels first, k4 with 16 channels on a side 1.03 to 1.54, else 0.5 to 1.1.
// One thread: from 32 channels on up to k3 1.05 to 1.25 (one tap, channels first, 0.8; k7 0.5 to
// 0.65). On Ice Lake fprop and dgrad of 4 to 16 channels on both sides 1.05 to 1.3, and fprop of
// windows that do not overlap, channels last, from up to 64 channels 1.1 to 1.35, from 128 0.95.
bool suits_volume_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  if (!avx512) return false;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const auto up_to = [&](int64_t k) {
    return std::ranges::all_of(g.axes, [&](const Axis& axis) { return axis.k <= k; });
  };
  if (is_intel()) {
    if (p.wanted == Role::w) return false;
    if (strides)
      return p.wanted == Role::y && channels_last && apart(g) && few >= 4 && more > 16 &&
             g.x_channels <= 64;
    return (few >= 4 && more <= 16) || (few >= 32 && (channels_last || !one_tap(g)) && up_to(3));
  }
  if (strides) {
    if (few < 8 || !unit_dilations(g)) return false;
    if (p.wanted == Role::y) return channels_last;
    if (p.wanted == Role::x || !up_to(4)) return false;
    return channels_last ? up_to(2) || !up_to(3) : few == 16 && !up_to(3);
  }
  if (few < 16 || !up_to(5)) return false;
  if (one_tap(g)) return channels_last && (p.wanted == Role::w || few >= 32);
  return p.wanted != Role::w || (!up_to(4) && unit_dilations(g));
}

// What follows are the other dense problems in 2-D in float32 that oneDNN's kernels take in place
// or nearly so, and that are as simple as its best kernels need. Times of simd over oneDNN, AVX2
// kernels of both on Zen 4, two threads, where nothing else is said.

// Windows that do not overlap, 1-D and 2-D in float32, channels last, of few channels. Times of
// simd over oneDNN, AVX2 and AVX-512 kernels of both, two threads of Zen 5:
// - dgrad, up to 16 channels of y, into 6 to 64: k4 in 1-D 0.9 to 3, 1.3 to 6; 2x2 1.0 to 1.7, 1.0
//   to 2.7; 3x3 0.9 to 1.5, 0.95 to 2; 4x4 0.6 to 1.2; into 4, from up to 4, 1.3 to 4 but 3x3 0.7
//   to 1.2; into 192 0.9 to 1.5;
// - wgrad, up to 4 taps, 4 channels of x and up to 16 of y 0.9 to 3, 1.2 to 3; 12 of x 1.0 to 2.2
//   with up to 2 of y, else 0.5 to 1.4; more taps or channels 0.3 to 1.2.
bool suits_apart_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  const int64_t taps = g.axes[1].k * g.axes[2].k, x = g.x_channels, y = g.y_channels;
  if (g.rank > 2 || !apart(g) || one_tap(g) || !has_channels_last(p)) return false;
  if (p.wanted == Role::x) return x < 6 ? taps <= 4 && y <= 4 : x <= 128 && taps <= 9 && y <= 16;
  return p.wanted == Role::w && taps <= 4 && (x <= 6 ? y <= 16 : x <= 16 && y <= 2);
}

// One tap, channels last, 4 to 24 channels beside 32 to 256, one thread: fprop from the few 1.05 to
// 1.4, from 4 0.4 (AVX2 kernels 0.75 to 1.05), dgrad into the many 0.75 to 1.2 (AVX2 kernels 0.7 to
// 1.1), wgrad with few channels of y 0.4 to 1.1 (AVX2 kernels 0.3 to 1.1, once 1.3), of x 0.8
// to 1.3 (AVX2 kernels 0.75 to 1.2).
bool few_beside(const Problem& p, int64_t few, int64_t more) {
  return has_channels_last(p) && one_tap(p.geometry) && few <= 24 && few <= more;
}

// - Kernels up to 5x5: channels last 1.1 to 1.6, channels first 1.0 to 1.5, but with 16 to 64
//   channels on either side, one thread, 0.6 to 1.05 (AVX-512 kernels 0.8 to 1.2, on Zen 5 with
//   strides 0.3 to 0.9); AVX2 kernels of both, two threads, channels first, 150 random layers, of
//   one image 0.8 to 1.5, mostly 1.02 to 1.2, of more 0.6 to 1.06; 0.8 to 0.95 with one tap,
//   channels first, 0.8 to 0.9 for larger kernels;
// - where windows do not overlap, k2 to k7, channels first 0.5 to 0.95 with 64 channels of x, with
//   256 AVX-512 kernels 1.05 to 1.1, AVX2 kernels 0.6 to 1.0, once 1.2; channels last, Zen 5, into
//   up to 32 channels 1.05 to 2.1 (AVX-512 kernels 1.2 to 2.5), 64 and more 0.95 to 1.08 (AVX-512
//   kernels 1.13 to 1.2);
// - with few channels of y, which fill no vectors, 0.25 to 0.95, of one tap, channels last, 1.2 to
//   1.5 from 5 channels on;
// - images up to 8x8, channels last, AVX2 kernels of both, k3 to k5: of 1 to 4 images 0.3 to 0.95,
//   of 16 0.6 to 1.04.
bool suits_fprop_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p);
  if (channels_last && apart(g) && !one_tap(g))
    return avx512 || g.y_channels <= 32 || g.x_channels >= 256;
  if (!avx512 && channels_last && !one_tap(g) && g.axes[2].y <= 8) return false;
  const bool few_channels = g.y_channels < 24 && g.y_channels % 8 != 0;
  if (few_channels) return channels_last && one_tap(g) && g.y_channels > 4;
  if (few_beside(p, g.x_channels, g.y_channels)) return avx512 && g.x_channels >= 8;
  if (one_tap(g)) return channels_last;
  const int64_t channels = std::min(g.x_channels, g.y_channels);
  if (!channels_last && channels < (avx512 ? 64 : 128)) return false;
  if (!channels_last && !avx512 && (g.batch > 1 || apart(g))) return false;
  return g.axes[1].k <= 5 && g.axes[2].k <= 5 && !(apart(g) && g.x_channels < 256);
}

// - Stride 1, channels last, 16 channels and more: 1.0 to 1.5 (stride 2 0.7 to 1.0; 11x11, Zen 5,
//   0.6 to 0.8); from 1 to 12 channels into 12 to 256, Zen 5, k3 to k7 1.02 to 2 (AVX-512 kernels
//   1.03 to 3.4);
// - channels first, AVX-512 kernels of both, one thread, from 256 channels on 1.2 (AVX2 kernels
//   0.85 to 1.1); two threads of Zen 4, 150 random layers, from a multiple of 16 channels, with 32
//   and more on both sides, 5x5, 7x7 and dilations 1.07 to 1.32, with 12 to 28 5x5 and 7x7 1.0
//   to 1.6; from other numbers 0.8 to 1.0, where a quarter of all taps is absent and more 1.08
//   to 1.85;
// - up to 256 pixels of images up to 8x8, channels last, AVX2 kernels of both, k3 and k5: 0.55
//   to 1.04, of more 0.95 to 1.2.
bool suits_dgrad_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t few = std::min(g.x_channels, g.y_channels);
  if (!unit_strides(g) || rows.k > 7 || columns.k > 7) return false;
  if (!avx512 && few_beside(p, g.y_channels, g.x_channels)) return false;
  if (!avx512 && !one_tap(g) && columns.y <= 8 && g.batch * rows.y * columns.y <= 256) return false;
  if (!has_channels_last(p)) {
    if (!avx512 || one_tap(g)) return false;
    if (!is_zen_3_or_4()) return few >= 256;
    if (g.y_channels % 16 != 0) return few >= 32 && 4 * rows.y * columns.y < 3 * rows.x * columns.x;
    return few >= (std::max(rows.k, columns.k) >= 5 ? 12 : 32);
  }
  return few >= 16 || (!one_tap(g) && g.x_channels >= 12);
}

// - One tap, channels last: 1.3 (more taps 0.3 to 0.8);
// - 4 to 8 channels on both sides, channels last, k3 to k5, Zen 5: up to 80x80 1.05 to 2.7, 128x128
//   0.8 to 2, 300x300 0.3 to 1.0; 1-D, 3-D, dilations 0.3 to 1.2.
bool suits_wgrad_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!has_channels_last(p)) return false;
  if (one_tap(g))
    return !few_beside(p, g.y_channels, g.x_channels) &&
           (avx512 || !few_beside(p, g.x_channels, g.y_channels));
  return !avx512 && few >= 4 && more <= 8 && rows.k * columns.k <= 25 && columns.y <= 80 &&
         rows.dilation == 1 && columns.dilation == 1;
}

// One tap, channels last, of data that lie far away, on CPUs that fetch less of them by themselves.
// Times of simd over oneDNN, two threads of Zen 4, 440 random layers of 16 to 1024 channels:
// - fprop and dgrad from 24 MB on, AVX2 kernels of both, 0.75 to 1.0 (from 128 channels into 16
//   and 24 0.53), up to 64 channels 1.03 to 1.35; AVX-512 kernels of both 0.65 to 1.06, fprop into
//   fewer 1.0, with up to 31 channels on a side 0.8 to 1.2; of 12 to 24 MB 0.8 to 1.3, mostly 1.1
//   to 1.3 (AVX-512 kernels 1.0 to 1.2);
// - wgrad from 12 MB on, means: AVX2 kernels of both, images up to 28x28 or into 1024 channels
//   0.83, others 0.85 to 1.2, 1.02 in the mean (8x56x56, 256 to 64: 1.15); AVX-512 kernels of both,
//   into as many or more 0.73 to 0.96, into fewer 1.0 to 1.15.
bool one_tap_far_away(const Problem& p, bool avx512) {
  constexpr int64_t kFarBytes = 24 << 20, kFarBytesOfWeights = 12 << 20;
  const Geometry& g = p.geometry;
  if (!is_zen_3_or_4() || !one_tap(g) || !has_channels_last(p) ||
      data_bytes_of_both(p) < (p.wanted == Role::w ? kFarBytesOfWeights : kFarBytes))
    return false;
  const bool into_fewer = g.y_channels < g.x_channels;
  if (p.wanted == Role::w)
    return avx512 ? !into_fewer : g.axes[1].y * g.axes[2].y <= 28 * 28 || g.y_channels >= 1024;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (avx512) return few >= 32 && (p.wanted == Role::x || !into_fewer);
  return more >= 128 && few >= (p.wanted == Role::y ? 16 : 32);
}

bool suits_image_kernels(const Problem& p, bool avx512) {
  if (one_tap_far_away(p, avx512)) return false;
  switch (p.wanted) {
    case Role::y:
      return suits_fprop_kernels(p, avx512);
    case Role::x:
      return suits_dgrad_kernels(p, avx512);
    default:
      return suits_wgrad_kernels(p, avx512);
  }
}

// One tap with strides in 1-D and 2-D in float32. Times of simd over oneDNN, AVX2 and AVX-512
// kernels of both, two threads of Zen 5: fprop in 1-D 1.0 to 2.2; in 2-D, channels last, 0.95
// to 1.4, channels first, from up to 160 channels into no more, 1.05 to 1.4 (into more, or from
// more, 0.6 to 1.05); dgrad in 1-D, channels last, into no more channels, 1.03 to 1.8; all else 0.3
// to 1.1 (fprop in 3-D 0.4 to 1.2).
bool suits_strided_tap_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p);
  if (p.wanted == Role::x) return g.rank == 1 && channels_last && g.x_channels <= g.y_channels;
  return p.wanted == Role::y &&
         (g.rank == 1 || channels_last || (g.x_channels <= 160 && g.y_channels <= g.x_channels));
}

// Problems for Winograd's filtering whose transformed weights, four times the weights for windows
// with two taps, outweigh the pixels. Times of simd over oneDNN, AVX-512 kernels of both, two
// threads of Zen 5, fprop of 4x4 with stride 2, channels last, 256 and more on both sides: into 8x8
// and 16x16, up to 2048 pixels, 1.04 to 1.14; 8192 pixels, 32x32 or 128 channels 0.75 to 1.0. On
// Ice Lake 1.19, AVX2 kernels of both 1.14.
bool outweighs_winograd(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  return (avx512 || is_intel()) && p.wanted == Role::y && g.rank == 2 && has_channels_last(p) &&
         rows.k == 4 && columns.k == 4 && std::min(g.x_channels, g.y_channels) >= 256 &&
         columns.y <= 16 && g.batch * rows.y * columns.y <= 2048;
}

// 3x3 windows for Winograd's filtering of so few channels that transforms outweigh the products.
// Times of simd over oneDNN, AVX2 kernels of both, two threads of Zen 4, fprop and dgrad of 28x28
// to 200x200, channels last: 8 on both sides 1.13 to 1.4; 16 up to 56x56 0.93 to 0.98, 112x112 1.0,
// 200x200 1.15; 16 beside 32, 24 and more 0.63 to 0.99. AVX-512 kernels of both: into 16 and 32
// channels of up to 1600 pixels 0.95 to 1.6, more of either 0.5 to 1.05.
bool transforms_outweigh(const Problem& p, bool avx512) {
  constexpr int64_t kLongRow = 160, kFewPixels = 1600;
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  if (p.wanted == Role::w || g.rank != 2 || !has_channels_last(p) || rows.k != 3 ||
      columns.k != 3 || !unit_strides(g) || !unit_dilations(g))
    return false;
  if (avx512)
    return (p.wanted == Role::y ? g.y_channels : g.x_channels) <= 32 &&
           g.batch * rows.y * columns.y <= kFewPixels;
  return std::max(g.x_channels, g.y_channels) <= (columns.y < kLongRow ? 8 : 16);
}

// What transforms outweigh on Intel's CPUs with AVX-512, of any windows and with wgrad.
// Times of simd over oneDNN, two threads of Ice Lake, 2-D, channels last: fprop and dgrad with up
// to 32 channels on a side 0.95 to 1.6, 48 and more 0.65 to 1.1; wgrad with 16 1.5, with 32 1.0.
bool outweighs_few_channels(const Problem& p) {
  const Geometry& g = p.geometry;
  return p.dtype == Dtype::f32 && is_intel() && g.groups == 1 && g.rank == 2 &&
         has_channels_last(p) && suits_winograd(p) &&
         std::min(g.x_channels, g.y_channels) <= (p.wanted == Role::w ? 16 : 32);
}

// On Intel's CPUs with AVX-512 instead of what is said of 1-D above. Times of simd over oneDNN, two
// threads of Ice Lake: channels last, one tap 1.15 to 1.4; k3 to k5 with stride 1 1.0 to 1.3, with
// strides fprop from or into up to 32 channels 1.25 to 1.4, more 0.9 to 1.05; larger kernels 0.6
// to 1.05; channels first 0.65 to 1.1.
bool suits_sequence_kernels_of_intel(const Problem& p) {
  const Geometry& g = p.geometry;
  const Axis& axis = g.axes.back();
  if (!has_channels_last(p)) return false;
  if (axis.k == 1 || p.wanted == Role::w) return axis.k == 1 && axis.stride == 1;
  if (axis.stride == 1) return axis.k <= 5;
  return axis.k <= 5 && p.wanted == Role::y && std::min(g.x_channels, g.y_channels) <= 32;
}

bool suits_dense_kernels(const Problem& p, bool avx512) {
  const bool intel = avx512 && is_intel();
  if (suits_winograd(p)) return outweighs_winograd(p, avx512) || transforms_outweigh(p, avx512);
  if (intel && has_few_channels(p)) return false;  // suits_few_channels_kernels has decided
  if (p.geometry.rank < 3 && one_tap(p.geometry) && !unit_strides(p.geometry))
    return suits_strided_tap_kernels(p);
  if (p.geometry.rank == 1 && intel) return suits_sequence_kernels_of_intel(p);
  // One tap of channels last is the same in 1-D and 2-D: 0.9 to 1.3 up to 12 MB, 0.8 to 1.05 beyond
  // (40 random layers, two threads of Zen 4).
  const bool image = p.geometry.rank == 1 && one_tap(p.geometry) && has_channels_last(p);
  if (p.geometry.rank == 2 || image) return suits_image_kernels(p, avx512);
  return p.geometry.rank == 1 ? suits_sequence_kernels(p, avx512) : suits_volume_kernels(p, avx512);
}

// Groups of at least four channels on both sides on Intel's CPUs, channels last, without dilations,
// up to five taps an axis (1-D with 41: 0.1 to 0.9; 3-D: 0.2 to 2.7, without a pattern). Times of
// simd over oneDNN, two threads of Ice Lake, 160 random layers, 2-D, of 2 to 32 groups of 4 to 96
// channels, and some in 1-D alike, AVX-512 kernels of both:
// - one tap, fprop and dgrad 1.0 to 4.1;
// - fprop and dgrad into 7 to 16 channels, less than a vector or one, 0.8 to 3.6, mostly 1.2 to
//   1.9; into up to 6 with strides, or 24 in all groups, 1.6 to 3.6, others 0.7 to 1.2; into more
//   0.5 to 1.1, but fprop with strides into a multiple of 16 mostly 1.15 to 1.5;
// - wgrad of 7 to 12, and without strides up to 16 on both sides, 0.8 to 3.6, mostly 1.0 to 1.7; of
//   up to 6, 24 in all groups, 1.6 to 3.6; one tap of up to 15 1.5 to 3.1; others 0.5 to 1.3.
// AVX2 kernels of both:
// - one tap 1.0 to 3.2, dgrad with strides into 16 and more 0.5 to 0.9;
// - fprop into up to 12 channels from 7 and more 0.8 to 2.3, from fewer 0.3 to 0.5;
// - dgrad into 5 to 12 channels 0.7 to 2.4, with strides into 7 and 8 from up to 8 1.6 to 2.1,
//   others 0.2 to 1.1; fprop and dgrad into more 0.4 to 1.3;
// - wgrad of 7 and 8 0.8 to 1.9, of up to 6 with strides 1.3 to 1.9, one tap of up to 12 0.8 to
//   3.0; of others 0.3 to 1.4.
bool suits_grouped_kernels_of_intel(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const bool wide = std::ranges::any_of(g.axes, [](const Axis& axis) { return axis.k > 5; });
  if (!is_intel() || p.dtype != Dtype::f32 || g.rank == 3 || g.groups == 1 || few < 4 || wide ||
      !unit_dilations(g) || !has_channels_last(p))
    return false;
  const bool strides = !unit_strides(g), one = one_tap(g), fprop = p.wanted == Role::y;
  constexpr int64_t kFewLanes = 24;
  if (p.wanted == Role::w) {
    if (one) return few <= (avx512 ? 15 : 12);
    if (!avx512) return few <= 8 && (few >= 7 || strides);
    return few < 7 ? g.groups * few <= kFewLanes : few <= 12 || (more <= 16 && !strides);
  }
  const auto [from, into] =
      fprop ? std::pair{g.x_channels, g.y_channels} : std::pair{g.y_channels, g.x_channels};
  if (one) return avx512 || fprop || !strides || into <= 12;
  if (avx512) {
    if (into < 7) return strides || g.groups * into <= kFewLanes;
    return into <= 16 || (fprop && strides && into % 16 == 0);
  }
  if (fprop) return from >= 7 && into <= 12;
  if (strides) return into >= 7 && std::max(from, into) <= 8;
  return into >= 5 && into <= 12;
}

// Groups of at least four channels on both sides on AMD's CPUs that are none for Winograd's
// filtering, without dilations if nothing is said. Times of simd over oneDNN, two threads of Zen 4,
// 1000 random layers of 2 to 32 groups of 4 to 32 channels, 1-D to 3-D, k1 to k9; others, and those
// not named, 0.1 to 1.2:
// - AVX-512 kernels of both, 8 channels: fprop and dgrad, channels last, 1.45 to 4.6; channels
//   first, whose lanes are pixels of a row, with and without dilations (120 more layers), 0.94 to
//   1.37, in 3-D up to 2.4, fprop with strides 0.9 to 1.95, but rows of 100 and more 0.7 to 0.94
//   and 1-D 0.4; dgrad with strides up to 12 MB 0.93 to 2.5 (more 0.7); wgrad, channels last, 1.2
//   to 2.2, of 9 taps and more with stride 1, in 1-D and 2-D, 0.66 to 1.0; channels first, of one
//   image, 1.15 to 1.5, of more 0.5 to 1.5; 8 beside 16, channels last, dgrad and wgrad 1.4 to 2.0;
// - channels last, 16 channels: dgrad 1.02 to 1.75; with strides wgrad and fprop up to 12 MB in 2-D
//   and 3-D 0.9 to 1.5, of more and in 1-D 0.4 to 1.4; 12 channels, wgrad of k3 1.3 to 1.68, once
//   0.84, else 0.7 to 1.2; 4 channels with strides, dgrad and wgrad 1.14 to 1.24; one tap of 8 and
//   more 1.5 to 2.2;
// - AVX2 kernels of both, 8 channels: dgrad 1.06 to 1.76, with strides in 1-D and 3-D 0.25 to 1.4;
//   wgrad, channels last, in 2-D up to 12 MB 1.05 to 1.85, of more 0.5 to 0.75; fprop 0.5 to 0.9,
//   in 1-D, channels last, 1.4 to 2.1.
bool suits_grouped_kernels_of_amd(const Problem& p, bool avx512) {
  constexpr int64_t kFarBytes = 12 << 20, kLongRow = 100;
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const int64_t taps = g.taps();
  if (is_intel() || p.dtype != Dtype::f32 || g.groups == 1 || few < 4 || suits_winograd(p))
    return false;
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const bool far = data_bytes_of_both(p) > kFarBytes;
  const bool as_many = few == more;
  const bool slides =
      avx512 && !channels_last && (p.wanted == Role::y || (p.wanted == Role::x && !strides));
  if (slides) return few == 8 && as_many && g.rank > 1 && g.axes.back().y < kLongRow;
  if (!unit_dilations(g)) return false;
  if (!avx512) {
    if (few != 8 || !as_many) return false;
    if (p.wanted == Role::x) return !strides || g.rank == 2;
    return channels_last && (p.wanted == Role::y ? g.rank == 1 : g.rank == 2 && !far);
  }
  if (!channels_last) {
    if (few != 8 || !as_many || far) return false;
    return p.wanted == Role::x || (g.rank == 2 && g.batch == 1);
  }
  if (few >= 8 && one_tap(g)) return true;
  if (few == 8 && (as_many || (more == 16 && p.wanted != Role::y)))
    return p.wanted != Role::w || strides || g.rank == 3 || taps < 9;
  if (!as_many) return false;
  if (few == 12) return p.wanted == Role::w && g.rank > 1 && g.axes.back().k == 3;
  if (few == 16 && p.wanted == Role::x) return true;
  return strides && (few == 4 ? p.wanted != Role::y : few == 16 && g.rank > 1 && !far);
}

bool has_bfloat16_products() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

// 2-D depthwise problems in bfloat16 on CPUs with its dot products, channels last. Times of simd
// over oneDNN, two threads of Zen 4, 24 to 960 channels of 7x7 to 112x112: fprop of 3x3 0.65
// to 1.1, of 14x14 1.0 to 1.3, with strides 0.8 to 1.3; dgrad of 3x3 0.55 to 1.15, of 14x14 1.1;
// 5x5 and 7x7 0.5 to 1.0; dgrad with strides has no kernel; wgrad of 3x3 0.2 to 1.1. Channels first
// 0.3 to 0.95.
bool suits_bfloat16_depthwise_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (!has_bfloat16_products() || p.dtype != Dtype::bf16 || !has_depthwise_kernels(p) ||
      g.groups < 32 || p.x.channel != 1)
    return false;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  if (rows.k > 3 || columns.k > 3 || p.wanted == Role::w) return false;
  return unit_strides(g) ? columns.y <= 16 : p.wanted == Role::y;
}

// Dense problems in bfloat16 on CPUs with its dot products, channels last. Times of simd over
// oneDNN, AVX-512 kernels of both, two threads of Zen 5, 1100 random layers of 1-D to 3-D (channels
// first, 1500 of them: wgrad 0.6 in the mean, fprop 0.75, dgrad 0.65, and 1.05 and more in 4, 17
// and 10 % of the layers, without a pattern):
// - one tap: fprop 1.1 to 3.8, wgrad with stride 1 from 16 channels on 0.8 to 1.5, mostly 1.05 to
//   1.2;
// - fprop from up to 47 channels to 3400 pixels and more 1.35 in the mean, from any to 1000 pixels
//   and more of a multiple of 16 channels 1.1; to fewer, or up to 3 channels, 0.6 to 1.0;
// - dgrad from up to 23 channels, fewer than 49 taps, 1.3 to 1.6; from 3400 pixels and more, up to
//   6 taps, 1.35; from 1000 and more, stride 1, 1.1; to up to 3 channels 0.55; all others 0.75;
// - wgrad of up to 23 channels on both sides, 1-D and 2-D, 1.3, of few pixels 0.7; others 0.7.
bool suits_bfloat16_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (!has_bfloat16_products() || p.dtype != Dtype::bf16 || g.groups != 1 || !has_channels_last(p))
    return false;
  // Slices run one after the other: 1.1 to 1.2 times the time of simd with 7 to 23 MFLOP in each,
  // as long with 230; from 3 channels 0.75.
  constexpr int64_t kSmallSliceFlops = 50'000'000;
  if (p.slices > 1 && g.x_channels > 3 && flops(p) / p.slices < kSmallSliceFlops) return false;
  const int64_t taps = g.taps();
  const int64_t pixels = pixels_of_y(g);
  const bool strides = !unit_strides(g);
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const bool many_pixels = pixels >= 3400, some_pixels = pixels >= 1000;
  if (p.wanted == Role::y)
    return taps == 1 || (g.y_channels >= 4 && ((many_pixels && g.x_channels < 48) ||
                                               (some_pixels && g.y_channels % 16 == 0)));
  if (p.wanted == Role::x)
    return g.x_channels >= 4 && ((taps <= 6 && many_pixels) || (taps < 49 && g.y_channels < 24) ||
                                 (taps <= 49 && some_pixels && !strides && g.x_channels >= 12));
  return (taps == 1 && !strides && few >= 16) || (more < 24 && g.rank < 3 && many_pixels);
}

// Below this the call itself decides, and a primitive of oneDNN costs several microseconds more.
constexpr int64_t kTinyFlops = 4'000'000, kTinyFlopsOfFewChannels = 1'000'000;

// Its primitives compute slices one after the other, each of which costs 4 to 9 us more: depthwise
// 3x3 of 384 channels of 14x14 (1.4 MFLOP) takes 1.2 times as long as here, 3x3 from 3 to 64
// channels of 32x32 (3.5 MFLOP) 0.7 to 0.9 (Zen 4).
constexpr int64_t kTinySliceFlops = 2'000'000;

}  // namespace

// simd first: on most shapes of the benchmark it is faster than oneDNN, and it needs no copies of
// whole tensors (docs/performance.md). Not on the problems above, and not in 16 bits on CPUs with
// matrix registers, which only oneDNN uses: eight times the rate of the bfloat16 dot products of
// AVX-512.
const std::vector<const Backend*>& preference(const Problem& problem, std::string_view target) {
  static const bool matrix_registers = has_amx();
  static const std::vector<const Backend*> onednn_first{&kOnednnBackend, &kSimdBackend,
                                                        &kReferenceBackend};
  const bool sixteen_bits = problem.dtype == Dtype::bf16 || problem.dtype == Dtype::f16;
  if (matrix_registers && sixteen_bits) return onednn_first;
  const bool avx512 = target == "avx512",
             dense = problem.dtype == Dtype::f32 && problem.geometry.groups == 1;
  const int64_t work = flops(problem);
  if (problem.slices > 1 && work / problem.slices < kTinySliceFlops) return backends();
  const bool onednn =
      (work >= kTinyFlops &&
       (suits_depthwise_kernels(problem, avx512) ||
        (dense && suits_dense_kernels(problem, avx512)) ||
        (avx512 && (outweighs_few_channels(problem) || suits_bfloat16_kernels(problem) ||
                    suits_bfloat16_depthwise_kernels(problem))))) ||
      (work >= kTinyFlopsOfFewChannels && (suits_grouped_kernels_of_intel(problem, avx512) ||
                                           suits_grouped_kernels_of_amd(problem, avx512) ||
                                           (dense && (suits_few_channels_kernels(problem, avx512) ||
                                                      suits_apart_kernels(problem))))) ||
      (dense && suits_narrow_kernels(problem, avx512));
  return onednn ? onednn_first : backends();
}

#else

const std::vector<const Backend*>& preference(const Problem&, std::string_view) {
  return backends();
}

#endif

}  // namespace convtbw
