// Problems of few channels in float32.
#include <algorithm>

#include "core/cpu.h"
#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

// Up to three channels of x, on Intel's CPUs with AVX-512. Times of simd over oneDNN, two threads
// of Ice Lake, 75 random layers of 1-D to 3-D into 8 to 96 channels:
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
//   0.5 to 1.1, more 0.9 to 1.15; 3-D, up to 8 taps, 0.4 to 1.05, 27 1.0 to 1.15, k4 of stride 2
//   1.4, 125 and more 0.6 to 1.0; 1x5x5 and 1x7x7 as in 2-D.
bool suits_few_channels_kernels_in_planes(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const int64_t channels = g.y_channels, pixels = g.axes[2].y, taps = g.taps();
  if (channels % lanes_of(avx512) != 0) return false;
  if (avx512) return g.rank > 1 && pixels < (g.rank == 2 ? 60 : 32);
  if (g.axes[0].k == 1 && g.rank > 1) return pixels < 40 || channels > 48;
  return g.rank == 1 ? taps > 5 : taps > 8 && taps <= 64;
}

}  // namespace

// Up to three of x, beside several taps.
bool has_few_channels(const Problem& p) {
  return p.geometry.x_channels <= 3 && p.wanted != Role::x && !one_tap(p.geometry);
}

// Dense problems in float32 with up to three channels of x, whose taps fill vectors only after
// copies; not on Zen 4 with AVX-512, and less on Zen 3 and 4 without (zen_4.cpp, zen_avx2.cpp).
// Times of simd over oneDNN, k3 to k7 into 16 to 64 channels, one thread of Zen 4 and two of Zen 5:
// - fprop in 2-D 1.1 to 2.9, in 3-D 1.4 to 5; windows wider than 9, and AVX2 kernels of 8 and
//   9 (two threads of Zen 3 and 4), 0.3 to 1.0, from one channel into 128 up to 1.5; into 8
//   channels, many taps of two or three 0.65 to 0.85 (AVX-512 kernels, channels first, any taps),
//   into fewer 0.3 to 0.7; in 3-D, channels last, of two or three channels, with strides or k5,
//   0.65 to 0.9, AVX2 kernels, from one channel, k4 of stride 2, k5 and k7 0.66 to 0.88;
// - wgrad, AVX-512 kernels of both, in 2-D 1.05 to 3, from 3 to 64 channels 0.9 to 1.25; in 3-D 1.2
//   to 8; k2 and more channels of y 0.2 to 0.8; channels last, k2 into 32 to 128 1.3 to 1.8, k4
//   of stride 4 1.06 to 1.17; two threads of Zen 5, in 2-D, channels first, to 16 channels 1.07
//   to 1.25, to other multiples 0.8 to 0.95, to others 0.4 to 0.85;
// - wgrad, AVX2 kernels of both, in 2-D, channels first, 1 and 2 channels 0.2 to 0.5, 3 channels up
//   to 4x4 1.0 to 1.6, else 0.6 to 1.1; channels last 1 channel 1.1 to 2.4, 2 up to 5x5 1.0 to 1.5;
//   with dilation 0.7 to 0.9; in 3-D 1 channel, k3, 1.3 to 2.2 on Zen 4 but 0.2 to 0.8 on Zen 5
//   (k5 0.7, k2 and strides 0.15 to 0.3), 3 channels 0.5 to 1.0; two threads of Zen 5, channels
//   first, from 3 into 8 1.1 to 1.2, into others 0.6 to 1.0; of Zen 3, channels last, from 1 into
//   24 and more 0.4 to 1.07, 0.7 in the mean, into 16 0.6 to 1.35;
// - wgrad of very wide windows, up to 1x64 and 3x300, two threads of Zen 4, AVX-512 and AVX2
//   kernels of both, 0.18 to 0.69, 41x11 of stride 2 0.97;
// - one tap, channels first, 2 to 2 channels 0.06;
// - 1-D, two threads of Zen 5, k3 to k1024: fprop 1.0 to 4, but into 8 and 16 channels, many taps,
//   0.6 to 1.0, into 4, channels first, 0.7 to 1.0 (AVX-512 kernels into up to 24 0.7 to 1.1, into
//   36 and more that are no multiple of 16, with strides, 0.5 to 0.86);
//   wgrad of 1 to 512 channels, k16 and k20 with strides, channels first, 1.0 to 1.45, all else
//   0.14 to 1.1.
bool suits_few_channels_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t taps = g.taps();
  const bool channels_last = has_channels_last(p);
  const auto wide = [&](const Axis& axis) {
    return (axis.k - 1) * axis.dilation > (avx512 ? 8 : 6);
  };
  if (!has_few_channels(p)) return false;
  if (p.wanted == Role::w && g.rank > 1 && (very_wide(rows) || very_wide(columns))) return false;
  if (p.wanted == Role::y && g.rank > 1 && (wide(rows) || wide(columns) || g.y_channels < 8))
    return false;
  if (avx512 && is_intel()) return suits_few_channels_kernels_of_intel(p);
  if (p.wanted == Role::y && !channels_last && columns.stride <= 2)
    return suits_few_channels_kernels_in_planes(p, avx512);
  if (g.rank == 1) {
    if (p.wanted == Role::w)
      return !avx512 && !channels_last && g.x_channels == 1 && g.y_channels >= 512 &&
             columns.stride > 1 && taps >= 16 && taps <= 20;
    if (avx512 && !channels_last && (g.y_channels < 32 || g.y_channels % 16 != 0)) return false;
    return g.y_channels >= 24 || (g.y_channels >= 8 && taps * g.x_channels <= 44);
  }
  if (p.wanted == Role::y) {
    if (g.y_channels < 16 && (taps * g.x_channels > 64 || (avx512 && !channels_last))) return false;
    if (g.rank == 2 || !channels_last) return true;
    if (g.x_channels == 1) return avx512 || taps <= 27;
    return taps == 27 && rows.stride == 1;
  }
  if (avx512) {
    if (is_zen_5() && g.rank == 2 && !channels_last) return g.y_channels == 16 && taps >= 9;
    return (g.y_channels <= 64 && taps >= 9) || (g.rank == 2 && channels_last && taps <= 16);
  }
  if (rows.dilation > 1 || columns.dilation > 1 || g.rank == 3) return false;
  if (is_zen_3() && g.y_channels > 16) return false;
  if (channels_last && g.x_channels < 3) return g.x_channels == 1 || taps <= 25;
  return g.x_channels == 3 && (channels_last ? g.y_channels <= 32 : g.y_channels == 8) &&
         taps <= 16;
}

// One tap from many channels into few, channels last, which simd computes as products of rows.
// Times of simd over oneDNN, AVX2 kernels of both, two threads of Zen 3, fprop and dgrad from 8 to
// 768 channels: into 1 to 4 0.2 to 0.6, 5 to 7 0.45 to 0.95; 8, which fill a vector, 0.8 to 3.
bool becomes_few_channels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  if (p.wanted == Role::w || !one_tap(g) || !unit_strides(g) || !has_channels_last(p)) return false;
  const bool fprop = p.wanted == Role::y;
  const int64_t from = fprop ? g.x_channels : g.y_channels;
  const int64_t into = fprop ? g.y_channels : g.x_channels;
  return from >= (into <= 4 && !avx512 ? 8 : 16) && into <= 7;
}

// Dense problems of one tap in float32, channels last, with few channels. Times of simd over
// oneDNN, AVX2 and AVX-512 kernels of both, two threads of Zen 5: up to 24 on both sides, fprop and
// dgrad 1.05 to 3.8, 1.05 to 5.5; wgrad, 3 and more, 1.1 to 10, 1.35 to 10, but into few channels
// of y from more of x 0.3 to 0.8, AVX-512 kernels only from 16 on 0.4 to 0.9; dgrad from 48 to 128
// channels into 4 to 12 1.05 to 1.65, 1.0 to 1.95. Of 1024 pixels 0.6 to 1.1. That is of 2-D; 1-D
// and 3-D alike (70 layers, two threads of Zen 4: 0.8 to 1.9, 0.95 to 3, wgrad up to 5.8).
bool suits_narrow_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!many_pixels_of_one_tap(p)) return false;
  if (p.wanted == Role::x && g.x_channels >= 4 && g.x_channels < 16 && g.y_channels >= 24)
    return g.y_channels <= 128;
  if (more > 24) return false;
  if (p.wanted != Role::w || (avx512 && more < 16)) return true;
  if (g.x_channels <= g.y_channels) return few >= 3;
  return g.y_channels > 8 || (g.x_channels < 16 && g.y_channels > 4);
}

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

}  // namespace convtbw
