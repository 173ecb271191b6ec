// Dense problems in float32, not on Zen 4 with AVX-512 (zen_4.cpp).
#include <algorithm>

#include "core/cpu.h"
#include "core/spread_windows.h"
#include "core/winograd.h"
#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

// Dense problems in 1-D in float32, channels first. Times of simd over oneDNN, two threads of Zen
// 5, fprop: k3 to k7 1.05 to 1.3 with 48 channels of y and more (fewer 0.55 to 1.15; Zen 4, lanes
// of pixels mostly, 0.65 to 1.07); k16 s8 1.0 to 1.5 with 256 and 512 channels (Zen 4 1.6), 0.55
// to 1.0 with fewer; one tap 0.6 to 1.0; windows wider than 7 0.4 to 0.95. AVX-512 kernels of both:
// k3 and k4 1.0 to 1.2 with 48 channels and more, of stride 1 from up to 64, whose lanes are
// pixels, 0.8 to 1.0 (70 random layers); all else 0.55 to 1.0. dgrad of k3 with 128 channels and
// more 1.0 to 1.1, 1.06 in the mean (AVX2 kernels 0.94 to 1.1, 1.01), of k4 to k11 0.85 to 1.08.
bool suits_sequence_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis& axis = g.axes.back();
  if (p.wanted == Role::w || has_channels_last(p) || axis.k == 1) return false;
  const int64_t channels = std::min(g.x_channels, g.y_channels);
  const bool narrow = (axis.k - 1) * axis.dilation <= 6;
  if (p.wanted == Role::x)
    return avx512 && is_zen_5() && axis.k == 3 && axis.stride == 1 && channels >= 128;
  const bool lanes_of_pixels = is_zen_5() && axis.stride == 1 && g.x_channels <= 64;
  if (avx512) return narrow && axis.k <= 4 && channels >= 48 && !lanes_of_pixels;
  if (narrow) return !is_zen_3_or_4() && g.y_channels >= 48;
  return channels >= 256 && axis.dilation == 1;
}

// Dense problems in 3-D in float32 that are none for Winograd's filtering. Times of simd over
// oneDNN, AVX-512 kernels of both (AVX2 kernels 0.95 to 1.05, wgrad 0.3 to 0.8), two threads of
// Zen 4, 210 random layers of 8 to 128 channels:
// - fprop with strides, channels last, 0.15 to 1.05, mostly 0.8 to 1.0 (Zen 5); channels first 0.7
//   to 1.2;
// - stride 1 from 16 channels on, k5: fprop and dgrad 1.05 to 1.3; wgrad 1.02 to 1.44, one tap,
//   channels last, 1.3; dgrad with strides 0.5 to 1.1; all from 8 channels 0.25 to 1.2;
// - wgrad with strides, channels first, k4 with 16 channels on a side 1.03 to 1.54, else 0.5
//   to 1.1; channels last, k2 and k4, of 24 channels and more 0.4 to 1.2, 0.75 in the mean (40
//   random layers of Zen 5 0.34 to 0.99), of 16 0.8 to 1.35 (Zen 5 1.0 to 1.6), k3 0.44 to 1.27.
// One thread: from 32 channels on up to k3 1.05 to 1.25 (one tap, channels first, 0.8; k7 0.5 to
// 0.65). On Ice Lake fprop and dgrad of 4 to 16 channels on both sides 1.05 to 1.3, and fprop of
// windows that do not overlap, channels last, from up to 64 channels 1.1 to 1.35, from 128 0.95.
bool suits_volume_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  if (!avx512) return false;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  if (is_intel()) {
    if (p.wanted == Role::w) return false;
    if (strides)
      return p.wanted == Role::y && channels_last && apart(g) && few >= 4 && more > 16 &&
             g.x_channels <= 64;
    return (few >= 4 && more <= 16) ||
           (few >= 32 && (channels_last || !one_tap(g)) && taps_up_to(g, 3));
  }
  if (strides) {
    if (few < 8 || !unit_dilations(g)) return false;
    if (p.wanted != Role::w || !taps_up_to(g, 4)) return false;
    if (channels_last) return few <= 16 && (taps_up_to(g, 2) || !taps_up_to(g, 3));
    return few == 16 && !taps_up_to(g, 3);
  }
  if (few < 16 || !taps_up_to(g, 5)) return false;
  if (one_tap(g)) return channels_last && (p.wanted == Role::w || few >= 32);
  return p.wanted != Role::w || (!taps_up_to(g, 4) && unit_dilations(g));
}

// The functions up to suits_image_kernels are about problems in 2-D that oneDNN's kernels take in
// place or nearly so, and that are as simple as its best kernels need. Times of simd over oneDNN,
// AVX2 kernels of both on Zen 4, two threads, where nothing else is said.

// One tap, channels last, 4 to 24 channels beside 32 to 256, one thread: fprop from the few 0.75 to
// 1.05, from 4 0.4, dgrad into the many 0.7 to 1.1, wgrad with few channels of y 0.3 to 1.1, once
// 1.3, of x 0.75 to 1.2. AVX-512 kernels of both, two threads of Zen 5, 180 random layers, means:
// fprop 0.95, dgrad 1.0, wgrad 0.15 to 0.85, of x 0.75 to 0.94.
bool few_beside(const Problem& p, int64_t few, int64_t more) {
  return has_channels_last(p) && one_tap(p.geometry) && few <= 24 && few <= more;
}

// fprop and dgrad into one vector, channels first: tiles of one vector load as much as they
// multiply. Times of simd over oneDNN, AVX-512 kernels of both, two threads of Zen 5, 110 random
// layers, 14x14 to 112x112, into 14 to 16 channels from a multiple of 16: 5x5 and 7x7 1.05 to 1.5,
// fprop of 4x4 1.1 to 1.25, dgrad 0.85 to 1.0, once 1.3; 5x5 and 7x7 with dilations 1.06 to 1.5;
// strides, other numbers 0.3 to 1.1.
bool into_one_vector(const Problem& p, int64_t from, int64_t into) {
  const Geometry& g = p.geometry;
  const int64_t least = p.wanted == Role::y ? 4 : 5;
  return is_zen_5() && !has_channels_last(p) && into >= 14 && into <= 16 && from % 16 == 0 &&
         unit_strides(g) && g.axes[1].k >= least && g.axes[2].k >= least;
}

// One tap of few pixels and many weights, whose rows oneDNN's kernels read where they lie.
bool long_rows_of_weights(const Geometry& g) {
  constexpr int64_t kLeastPixels = 49, kMostPixels = 800;
  const int64_t pixels = pixels_of_y(g);
  return is_zen_5() && g.x_channels >= 1024 && g.x_channels * g.y_channels >= 256 << 10 &&
         pixels >= kLeastPixels && pixels <= kMostPixels;
}

// Of an image, as of DCGAN's first and last layers: rows of a product of matrices.
bool one_window(const Geometry& g) { return g.axes[1].y * g.axes[2].y == 1; }

// Of the images for which simd's kernels are better, channels last. Times of simd over oneDNN of
// several images, fprop and dgrad of 7x7 and 8x8, 5x5 and 7x7, 4 to 32 images, AVX-512 kernels of
// both, two threads of Zen 4, 10 layers: 0.84 to 1.02, 0.94 in the mean.
int64_t longest_short_row(const Geometry& g, bool avx512) {
  return avx512 && g.batch < kSeveralImages ? 5 : 8;
}

// fprop:
// - kernels up to 5x5: channels last 1.1 to 1.6, channels first 1.0 to 1.5, but with 16 to 64
//   channels on either side, one thread, 0.6 to 1.05 (AVX-512 kernels 0.8 to 1.2, on Zen 5 with
//   strides 0.3 to 0.9); AVX2 kernels of both, two threads, channels first, 150 random layers, of
//   one image 0.8 to 1.5, mostly 1.02 to 1.2, of more 0.6 to 1.06; 0.8 to 0.95 with one tap,
//   channels first (AVX-512 kernels, two threads of Zen 5, 49 to 800 pixels, from 1024 channels and
//   256 K weights on 1.0 to 1.23, 1.1 in the mean), 0.8 to 0.9 for larger kernels;
// - where windows do not overlap, k2 to k7, channels first 0.5 to 0.95 with 64 channels of x, with
//   256 AVX-512 kernels 1.05 to 1.1, AVX2 kernels 0.6 to 1.0, once 1.2; channels last, Zen 5, into
//   up to 32 channels 1.05 to 2.1 (AVX-512 kernels 1.2 to 2.5), 64 and more 0.95 to 1.08 (AVX-512
//   kernels 1.13 to 1.2);
// - with few channels of y, which fill no vectors, 0.25 to 0.95 (8 with AVX-512, two threads of Zen
//   4, from 32 to 512 0.6 to 0.82), of one tap, channels last, 1.2 to 1.5 from 5 channels on;
// - images up to 8x8, channels last, AVX2 kernels of both, k3 to k5: of 1 to 4 images 0.3 to 0.95,
//   of 16 0.6 to 1.04; AVX-512 kernels of both, two threads of Zen 5, up to 5x5 0.2 to 1.1, 0.7 in
//   the mean, 7x7 and 8x8 0.95 in the mean;
// - images up to 8x8, channels first, k4 of stride 2 up to 4x4 0.6 to 0.9, others 0.8 to 1.6;
//   AVX-512 kernels of both, two threads of Zen 5, 90 random layers: one window 0.19 to 0.52 (of
//   Zen 4 0.22 to 0.65); k3 to k5 up to 4x4 0.29 to 1.13, 0.6 in the mean, from 5x5 on 0.46
//   to 1.04, 0.85 in the mean (into one vector 0.97 to 1.2), k2 0.5 to 2.6;
// - with strides or dilations, long sums, AVX-512 kernels of both, two threads of Zen 5, 3x3 from
//   512 channels 0.95 to 1.08, of Zen 4 from 256 0.78 to 1.02, 5x5 1.07;
// - dilations, channels first, two threads of Zen 5, 60 random layers: AVX-512 kernels of both 0.45
//   to 1.04, once 1.4, AVX2 kernels 0.44 to 1.0; with padding wider than 10, which oneDNN may
//   compute as products of matrices, 0.3 to 1.1.
bool suits_fprop_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p);
  if (channels_last && apart(g) && !one_tap(g))
    return avx512 || g.y_channels <= 32 || g.x_channels >= 256;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  if (avx512 && !channels_last && one_window(g)) return false;
  const bool small =
      avx512 && is_zen_5() && !channels_last && columns.y <= 8 && std::min(rows.k, columns.k) > 2;
  if (small && columns.y <= 4) return false;
  if (avx512 && into_one_vector(p, g.x_channels, g.y_channels)) return true;
  if (small) return false;
  constexpr int64_t kWidePadding = 10;
  if (avx512 && !(unit_strides(g) && unit_dilations(g)) && sums_long(g, g.x_channels)) return false;
  if (channels_last && !one_tap(g) && columns.y <= longest_short_row(g, avx512)) return false;
  if (!channels_last && columns.k == 2 * columns.stride && columns.y <= 4) return false;
  if (!channels_last && !unit_dilations(g) && (is_zen_5() || columns.pad >= kWidePadding))
    return false;
  const bool few_channels =
      g.y_channels < 24 && (g.y_channels % 8 != 0 || (avx512 && g.y_channels == 8));
  if (few_channels) return channels_last && one_tap(g) && g.y_channels > 4;
  if (few_beside(p, g.x_channels, g.y_channels)) return false;
  if (one_tap(g)) return channels_last || (avx512 && long_rows_of_weights(g));
  const int64_t channels = std::min(g.x_channels, g.y_channels);
  if (!channels_last && channels < (avx512 ? 64 : 128)) return false;
  if (!channels_last && !avx512 && (g.batch > 1 || apart(g))) return false;
  return rows.k <= 5 && columns.k <= 5 && !(apart(g) && g.x_channels < 256);
}

// dgrad:
// - stride 1, channels last, 16 channels and more: 1.0 to 1.5 (stride 2 0.7 to 1.0; 11x11, Zen 5,
//   0.6 to 0.8); from 1 to 12 channels into 12 to 256, Zen 5, k3 to k7 1.02 to 2 (AVX-512 kernels
//   1.03 to 3.4; two threads of Zen 3, from 8 0.6 to 1.04, 0.8 in the mean);
// - channels first, AVX-512 kernels of both, one thread, from 256 channels on 1.2 (AVX2 kernels
//   0.85 to 1.1), of Zen 5 with dilations 0.85 to 1.0; of one window 0.25 to 0.5;
// - up to 256 pixels of images up to 8x8, channels last, AVX2 kernels of both, k3 and k5: 0.55
//   to 1.04, of more 0.95 to 1.2; AVX-512 kernels of both, two threads of Zen 5, up to 5x5 0.45 to
//   0.98, 0.7 in the mean, 7x7 and 8x8 0.95 in the mean;
// - one tap, channels last, into 8 to 12 channels, AVX-512 kernels of both, two threads of Zen 5,
//   1.1 to 1.85.
bool suits_dgrad_kernels(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const int64_t few = std::min(g.x_channels, g.y_channels);
  if (!unit_strides(g) || rows.k > 7 || columns.k > 7) return false;
  if (avx512 && has_channels_last(p) && !unit_dilations(g) && sums_long(g, g.y_channels))
    return false;
  if (avx512 && into_one_vector(p, g.y_channels, g.x_channels)) return true;
  if (few_beside(p, g.y_channels, g.x_channels)) return false;
  const bool small =
      columns.y <= longest_short_row(g, avx512) && (avx512 || g.batch * rows.y * columns.y <= 256);
  if (small && !one_tap(g) && has_channels_last(p)) return false;
  if (!has_channels_last(p)) {
    if (!avx512 || one_tap(g) || one_window(g)) return false;
    return few >= 256 && (unit_dilations(g) || !is_zen_5());
  }
  if (is_zen_3() && g.y_channels >= 4 && g.y_channels <= 12) return false;
  return few >= 16 || (one_tap(g) ? avx512 && few >= 8 : g.x_channels >= 12);
}

// wgrad:
// - one tap, channels last: 1.3 (more taps 0.3 to 0.8);
// - 4 to 8 channels on both sides, channels last, k3 to k5, Zen 5: up to 80x80 1.05 to 2.7, 128x128
//   0.8 to 2, 300x300 0.3 to 1.0; 1-D, 3-D, dilations 0.3 to 1.2;
// - 2x2 of stride 2, channels first, AVX-512 kernels of both, two threads of Zen 5: 256 to 512
//   pixels, 256 channels and more on both sides 1.13 to 1.5, of fewer channels 0.8 to 1.27, of more
//   or fewer pixels 0.5 to 1.05.
bool suits_wgrad_kernels(const Problem& p, bool avx512) {
  constexpr int64_t kManyWeights = 1 << 18, kLeastPixels = 256, kMostPixels = 512;
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!has_channels_last(p)) {
    const int64_t pixels = pixels_of_y(g);
    return avx512 && is_zen_5() && apart(g) && rows.k == 2 && columns.k == 2 &&
           few * more * 4 >= kManyWeights && pixels >= kLeastPixels && pixels <= kMostPixels;
  }
  if (one_tap(g)) return !few_beside(p, few, more);
  return !avx512 && few >= 4 && more <= 8 && rows.k * columns.k <= 25 && columns.y <= 80 &&
         rows.dilation == 1 && columns.dilation == 1;
}

// One tap, channels last, of data that lie far away, on CPUs that fetch less of them by themselves.
// Times of simd over oneDNN, AVX2 kernels of both, two threads of Zen 4, 440 random layers of 16 to
// 1024 channels, fprop and dgrad: from 24 MB on 0.75 to 1.0 (from 128 channels into 16 and 24
// 0.53), up to 64 channels 1.03 to 1.35; of 12 to 24 MB 0.8 to 1.3, mostly 1.1 to 1.3.
bool one_tap_far_away(const Problem& p, bool avx512) {
  constexpr int64_t kFarBytes = 24 << 20;
  const Geometry& g = p.geometry;
  if (avx512 || !is_zen_3_or_4() || !one_tap(g) || !has_channels_last(p) ||
      data_bytes_of_both(p) < kFarBytes || p.wanted == Role::w)
    return false;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  return more >= 128 && few >= (p.wanted == Role::y ? 16 : 32);
}

// One tap, channels last: of so few pixels that oneDNN's kernels wait for weights, and weights
// gradients of so many that they wait for data. Times of simd over oneDNN, two threads of Zen 5,
// 300 random layers of 32 to 2048 channels, means: fprop and dgrad, AVX-512 kernels of both, 16 to
// 48 pixels 0.5 to 0.7, 64 0.8, 128 and 256 0.88, up to 600 0.96 and 0.88, more 0.97 to 1.03; AVX2
// kernels 0.3 to 0.7, from 256 pixels on 1.0; wgrad, AVX-512 kernels, 64 pixels 0.88, 128 to 4096
// 1.0 to 1.08, 6 and 12 K 0.88 to 1.33, from 24 K on 0.57 to 1.03; AVX2 kernels 0.7 to 0.8, up to
// 600 pixels 0.91, more 0.94 to 1.07.
bool one_tap_suits_simd(const Problem& p, bool avx512) {
  if (!one_tap(p.geometry) || !has_channels_last(p)) return false;
  const int64_t pixels = pixels_of_y(p.geometry);
  if (p.wanted != Role::w) return pixels < (avx512 ? 600 : 256);
  constexpr int64_t kFarPixels = 16 << 10;
  return pixels < (avx512 ? 128 : 600) || (avx512 && is_zen_5() && pixels >= kFarPixels);
}

bool suits_image_kernels(const Problem& p, bool avx512) {
  if (one_tap_far_away(p, avx512) || one_tap_suits_simd(p, avx512)) return false;
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
// to 1.4, channels first, where simd gathers pixels (strides beyond 2), from up to 160 channels
// into no more, 1.05 to 1.4 (into more, or from more, 0.6 to 1.05; strides of 2, 1-D and 2-D, two
// threads of Zen 4, 0.5 to 1.0, twice 1.06 and 1.17); dgrad in 1-D, channels last, into no more
// channels, 1.03 to 1.8; all else 0.3 to 1.1 (fprop in 3-D 0.4 to 1.2).
bool suits_strided_tap_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p);
  if (p.wanted == Role::x) return g.rank == 1 && channels_last && g.x_channels <= g.y_channels;
  return p.wanted == Role::y &&
         (channels_last ||
          (g.axes.back().stride > 2 &&
           (g.rank == 1 || (g.x_channels <= 160 && g.y_channels <= g.x_channels))));
}

// Problems for Winograd's filtering whose transformed weights, four times the weights for windows
// with two taps, outweigh the pixels. Times of simd over oneDNN, AVX-512 kernels of both, two
// threads of Zen 5, fprop of 4x4 with stride 2, channels last, 256 and more on both sides: into 8x8
// and 16x16, up to 1024 pixels, 1.0 to 1.14; 2048 and more, 32x32 or 128 channels 0.75 to 1.0. On
// Ice Lake 1.19, AVX2 kernels of both 1.14. Into 4x4 0.75 to 1.0 (Zen 5).
bool outweighs_winograd(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  return (avx512 || is_intel()) && p.wanted == Role::y && g.rank == 2 && has_channels_last(p) &&
         rows.k == 4 && columns.k == 4 && std::min(g.x_channels, g.y_channels) >= 256 &&
         columns.y > 4 && columns.y <= 16 && g.batch * rows.y * columns.y <= 1024;
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
  if (avx512) {
    const int64_t into = p.wanted == Role::y ? g.y_channels : g.x_channels;
    return into <= 32 && pixels_of_y(g) <= kFewPixels;
  }
  return std::max(g.x_channels, g.y_channels) <= (columns.y < kLongRow ? 8 : 16);
}

// The same of one vector of channels on Zen 5 with AVX-512, beside what is said above. Times of
// simd over oneDNN, two threads, 35 layers in 2-D:
// - 3x3, 16 channels on both sides, channels last: fprop and dgrad 1.14 to 1.3 (200x200 0.9
//   and 1.24), wgrad of several images 1.02 to 1.3, of one 0.7; channels first 0.87 to 1.18; more
//   channels on a side 0.45 to 1.05, once 1.1;
// - 4x4 of stride 2, fprop into 16 channels from 64 and more, rows of up to 20 windows 1.19
//   to 1.5, wgrad 1.06 to 1.16; longer rows 0.82 to 1.09.
bool transforms_outweigh_on_zen_5(const Problem& p) {
  constexpr int64_t kOneVector = 16, kManyChannels = 64, kShortRow = 20;
  const Geometry& g = p.geometry;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  if (g.rank != 2 || !unit_dilations(g) || g.y_channels != kOneVector || rows.k != columns.k)
    return false;
  if (unit_strides(g))
    return g.x_channels == kOneVector && has_channels_last(p) && columns.k == 3 &&
           (p.wanted != Role::w || g.batch > 1);
  return p.wanted != Role::x && g.x_channels >= kManyChannels && columns.k == 4 &&
         columns.y <= kShortRow;
}

// What transforms outweigh on Intel's CPUs with AVX-512, of any windows and with wgrad.
// Times of simd over oneDNN, two threads of Ice Lake, 2-D, channels last: fprop and dgrad with up
// to 32 channels on a side 0.95 to 1.6, 48 and more 0.65 to 1.1; wgrad with 16 1.5, with 32 1.0.
bool outweighs_few_channels(const Problem& p) {
  const Geometry& g = p.geometry;
  return g.rank == 2 && has_channels_last(p) &&
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

// fprop and dgrad of so few pixels that oneDNN's kernels wait for weights. Times of simd over
// oneDNN, AVX-512 kernels of both, two threads of Zen 5, 450 random layers of 32 to 512 channels:
// - windows that do not overlap, fprop, channels last, up to 600 pixels 0.38 to 1.03, once 1.12,
//   0.7 in the mean; channels first, up to 300 0.6 to 0.91, once 1.2, more 0.96 to 1.4;
// - one tap, channels last, 3-D or with strides, up to 256 pixels 0.54 to 0.86;
// - others, channels last, fprop of stride 1 up to 128 pixels 0.48 to 1.0, more 0.57 to 1.19; with
//   strides up to 160 0.27 to 1.0, once 1.14, more 0.85 to 1.16; dgrad of stride 1 up to 160 0.7
//   to 0.92, more 0.82 to 1.59;
// - others, channels first, up to 112 pixels 0.62 to 0.93, more 0.69 to 1.23.
bool waits_for_weights(const Problem& p) {
  constexpr int64_t kLeastChannels = 24;
  const Geometry& g = p.geometry;
  if (p.wanted == Role::w || std::min(g.x_channels, g.y_channels) < kLeastChannels) return false;
  const int64_t pixels = pixels_of_y(g);
  const bool channels_last = has_channels_last(p), fprop = p.wanted == Role::y;
  if (one_tap(g)) return channels_last && pixels <= 256;
  if (fprop && apart(g)) return pixels <= (channels_last ? 600 : 300);
  if (!channels_last) return pixels <= 112;
  return pixels <= (fprop && unit_strides(g) ? 128 : 160);
}

}  // namespace

// fprop and dgrad of so few pixels that simd reads the weights where they lie (simd/rules). Times
// over oneDNN's, AVX2 and AVX-512 kernels of both, two threads of Zen 5, 40 random layers: 0.07 to
// 0.8, 0.3 in the mean. Windows that spread, two threads of Zen 4, 16 layers: of 9 to 25 pixels
// 0.28 to 1.1, 0.55 in the mean, of 36 0.8 to 1.1, of 49 to 64 0.8 to 1.4.
bool few_pixels(const Problem& p) {
  constexpr int64_t kFewPixels = 8, kFewSpreadPixels = 36;
  if (p.wanted == Role::w) return false;
  return pixels_of_y(p.geometry) <= (windows_spread(p) ? kFewSpreadPixels : kFewPixels);
}

bool suits_dense_kernels(const Problem& p, bool avx512) {
  const bool intel = avx512 && is_intel();
  if (avx512 && !intel && waits_for_weights(p)) return false;
  if (suits_winograd(p, lanes_of(avx512)))
    return outweighs_winograd(p, avx512) || transforms_outweigh(p, avx512) ||
           (avx512 && is_zen_5() && transforms_outweigh_on_zen_5(p)) ||
           (intel && outweighs_few_channels(p));
  if (intel && has_few_channels(p)) return false;  // suits_few_channels_kernels has decided
  if (p.geometry.rank < 3 && one_tap(p.geometry) && !unit_strides(p.geometry))
    return suits_strided_tap_kernels(p);
  if (p.geometry.rank == 1 && intel) return suits_sequence_kernels_of_intel(p);
  // One tap of channels last is the same in 1-D and 2-D: 0.9 to 1.3 up to 12 MB, 0.8 to 1.05 beyond
  // (40 random layers, two threads of Zen 4). So are windows that do not overlap: into 32 channels
  // 1.05 to 1.45, into more 0.75 to 1.2 (k2 to k8, AVX2 kernels of both, two threads of Zen 3).
  const bool same = one_tap(p.geometry) || (!avx512 && p.wanted == Role::y && apart(p.geometry));
  const bool image = p.geometry.rank == 1 && same && has_channels_last(p);
  if (p.geometry.rank == 2 || image) return suits_image_kernels(p, avx512);
  return p.geometry.rank == 1 ? suits_sequence_kernels(p, avx512) : suits_volume_kernels(p, avx512);
}

}  // namespace convtbw
