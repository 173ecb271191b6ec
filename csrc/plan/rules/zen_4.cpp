// Dense problems in float32 and bfloat16 on Zen 4 with AVX-512, instead of the other rules of dense
// problems, which mislead here. Two threads, 2300 layers in both layouts: 1000 random ones of 1-D
// to 3-D, 840 of few channels, 330 of well-known networks. What is chosen takes longer than the
// better of both backends by so many per cent in the mean, by these rules (simd alone, rules of
// other CPUs):
//                              fprop           dgrad           wgrad
//   float32, channels last     3.1 (5.0, 4.4)  2.0 (2.2, 2.5)  3.0 (6.3, 4.6)
//   float32, channels first    2.9 (3.7, 4.4)  1.7 (1.8, 1.8)  1.4 (1.4, 2.4)
//   bfloat16, channels last    1.6 (5.1, 3.7)  3.0 (3.5, 6.0)  2.0 (3.6, 4.4)
//   bfloat16, channels first   2.3             0.8             1.9
// Below: times of simd over oneDNN of the layers that a rule gives to oneDNN, quartiles and mean.
#include <algorithm>

#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

constexpr int64_t kLanes = lanes_of(true);

bool several_images(const Geometry& g) { return g.batch >= kSeveralImages; }

bool whole_vectors(const Geometry& g) {
  return g.x_channels % kLanes == 0 && g.y_channels % kLanes == 0;
}

// Of which Winograd's filtering makes nothing.
bool many_taps(const Geometry& g) { return g.rank == 2 && g.taps() >= 25; }

// fprop and dgrad of few small images, whose windows miss many taps: oneDNN's kernels multiply none
// of these, simd's those of a row where there are no other images whose windows miss the same.
// Times of simd over oneDNN, AVX-512 kernels of both, float32 and bfloat16, two layouts, two
// threads of Zen 4, of 64 to 128 channels, 7x7 and 9x9 of 12x12 to 20x20: 1 to 3 images 0.9
// to 1.35, 1.1 in the mean; 4 images and more 0.8 to 1.2, 0.99; 3x3 of 2x2 to 5x5 0.3 to 1.45.
bool misses_taps(const Problem& p) {
  constexpr int64_t kLeastChannels = 32, kLeastPixels = 300, kWidest = 9;
  constexpr double kMostPresent = 0.8;
  const Geometry& g = p.geometry;
  return p.wanted != Role::w && many_taps(g) && !several_images(g) && taps_up_to(g, kWidest) &&
         unit_strides(g) && unit_dilations(g) &&
         std::min(g.x_channels, g.y_channels) >= kLeastChannels && pixels_of_y(g) >= kLeastPixels &&
         present_part(g) < kMostPresent;
}

// Volumes of whole vectors of channels under windows of 4x4x4 to 7x7x7, as V-Net's, of which
// oneDNN's kernels miss what lies outside. 110 layers of 8 to 40 positions an axis in float32, 66
// in bfloat16, of those chosen (float32 8.3 % more time with simd alone than with the better of
// both, 1.6 with this rule):
// - fprop, channels first 0.99 to 2.0, quartiles 1.06 and 1.23, bfloat16 0.76 to 1.65, 1.03 and
//   1.24; channels last, up to 3 images, 0.96 to 1.45, 1.02 and 1.16 (bfloat16 0.72 to 1.2, 0.99);
// - dgrad, channels first from 5x5x5 on 1.01 to 1.95, 1.18 and 1.39, bfloat16 0.88 to 2.2, 1.08 and
//   1.29; channels last, up to 3 images, 1.0 to 1.8, 1.04 and 1.25;
// - wgrad of windows that reach beyond the volume 0.89 to 2.2, 1.08 and 1.5; bfloat16, few
//   channels, 1.09 to 2.0, 1.11 and 1.4 (more 0.83 to 1.13, even windows, channels first, 0.1 to
//   0.2); of others 0.6 to 1.0.
bool suits_volumes(const Problem& p) {
  constexpr int64_t kLeastTaps = 4, kMoreTaps = 5, kLeastPixels = 64, kFewWeightsOfATap = 1536;
  constexpr double kMostPresent = 0.95;
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p), float32 = p.dtype == Dtype::f32;
  const int64_t least_taps = p.wanted == Role::x && !channels_last ? kMoreTaps : kLeastTaps;
  if (std::ranges::any_of(g.axes, [&](const Axis& axis) { return axis.k < least_taps; }))
    return false;
  if (!unit_strides(g) || !unit_dilations(g) || !whole_vectors(g) ||
      pixels_of_an_image(g) < kLeastPixels)
    return false;
  const auto odd = [](const Axis& axis) { return axis.k % 2 == 1; };
  if (p.wanted == Role::w)
    return present_part(g) < kMostPresent &&
           (float32 ||
            (std::ranges::all_of(g.axes, odd) && g.x_channels * g.y_channels <= kFewWeightsOfATap));
  if (!channels_last) return true;
  return !several_images(g) && (float32 || p.wanted == Role::x);
}

// Such volumes under windows that are no whole strides long, of which fprop has phases of unequal
// taps: 3x3x3 of stride 2 to 7x7x7 of stride 4, up to 3 volumes, from 4x4x4 windows on, in float32,
// 55 layers, channels first 0.85 to 3.4, 1.04 and 1.38, channels last 0.54 to 4.2, 1.02 and 1.22.
// dgrad 0.95 and 1.02 in the mean, wgrad 0.95 and 1.04.
bool suits_strided_volumes(const Problem& p) {
  constexpr int64_t kLeastPixels = 64;
  const Geometry& g = p.geometry;
  return p.wanted == Role::y && p.dtype == Dtype::f32 && unit_dilations(g) && whole_vectors(g) &&
         !several_images(g) && pixels_of_an_image(g) >= kLeastPixels &&
         std::ranges::all_of(g.axes, [](const Axis& axis) {
           return axis.stride > 1 && axis.k > axis.stride && !whole_strides(axis);
         });
}

// One tap of stride 1, channels last, many pixels of few channels, 80 layers of 1-D to 3-D, means:
// - float32, fprop of up to 12 channels on both sides and into 8 1.36, wgrad of up to 12 3.3; dgrad
//   into up to 14, if they are no multiple of 8 or from more than 6, 1.29;
// - bfloat16, fprop from up to 56 channels 1.7, dgrad of up to 24 on a side 1.7, wgrad of up to 12
//   on both 2.1.
bool suits_narrow_pixels(const Problem& p) {
  const int64_t x = p.geometry.x_channels, y = p.geometry.y_channels;
  const auto [few, more] = std::minmax({x, y});
  if (!many_pixels_of_one_tap(p)) return false;
  if (p.wanted == Role::w) return more <= 12;
  if (p.dtype == Dtype::bf16) return p.wanted == Role::y ? x <= 56 : few <= 24;
  return p.wanted == Role::y ? more <= 12 || y == 8 : x <= 14 && (x % 8 != 0 || few > 6);
}

// - Channels last: from up to 8 channels into whole vectors, many pixels of several images, 1.02
//   to 1.17, 1.10 (250 layers); from one into up to 18, or of up to 4 taps an axis, 1.08 to 1.55,
//   1.23; from up to 4 into 16 1.10 to 1.18, 1.13.
// - Channels first, into whole vectors: few channels, short rows of windows, 1.07 to 1.3, 1.17,
//   many taps with long strides 1.09 to 1.17, 1.17; patches of 4 and more pixels along a row, as
//   ViT's first layer has, of 64 products and more from up to 12 1.03 to 1.24, 1.11 (fewer 0.65 to
//   1.17, 0.87: simd's pixels of a row); more channels, 5x5 and more, of small images 1.02 to 1.13,
//   1.06.
bool suits_float32_fprop(const Problem& p) {
  constexpr int64_t kManyPixels = 7200, kFewPixels = 100, kShortRow = 31, kSomePixels = 64,
                    kSomeProducts = 64;
  const Geometry& g = p.geometry;
  const Axis& row = g.axes[2];
  const int64_t x = g.x_channels, y = g.y_channels;
  if (has_channels_last(p)) {
    if (x <= 8 && y % kLanes == 0 && several_images(g) && pixels_of_y(g) >= kManyPixels)
      return true;
    if (x == 1) return row.x >= 36 && (y <= 18 || taps_up_to(g, 4));
    return x <= 4 && y == kLanes && flops(p) >= 12'000'000;
  }
  if (apart(g) && unit_dilations(g) && row.k >= 4 && x <= 12 && y % kLanes == 0 &&
      row.x >= kSomePixels && x * g.taps() >= kSomeProducts)
    return true;
  if (std::min(x, y) <= 8) {
    const bool short_rows = row.y <= kShortRow && (x >= 5 || g.taps() > 20);
    return y % kLanes == 0 && row.x >= 12 && (short_rows || (row.stride > 2 && g.taps() > 45));
  }
  if (!(unit_strides(g) && unit_dilations(g)) && sums_long(g, x)) return false;
  return many_taps(g) && whole_vectors(g) && std::max(x, y) <= 288 && row.x <= 44 &&
         pixels_of_y(g) >= kFewPixels;
}

// Of stride 1:
// - channels last, from few channels into more, large images, 1.02 to 1.24, 1.14; 5x5 to 7x7 of few
//   images 1.04 to 1.12, 1.07;
// - channels first, 5x5 and more of up to 80 channels on a side, 1.04 to 1.11, 1.09.
bool suits_float32_dgrad(const Problem& p) {
  constexpr int64_t kFewPixels = 100, kManyPixels = 2048, kMostTaps = 7;
  const Geometry& g = p.geometry;
  const int64_t few = std::min(g.x_channels, g.y_channels);
  if (!unit_strides(g) || (!unit_dilations(g) && sums_long(g, g.y_channels))) return false;
  if (!has_channels_last(p))
    return many_taps(g) && whole_vectors(g) && few <= 80 && pixels_of_y(g) >= kFewPixels;
  if (g.y_channels <= 8 && g.x_channels >= 10) return pixels_of_an_image(g) >= kManyPixels;
  return many_taps(g) && taps_up_to(g, kMostTaps) && !several_images(g) && few >= 16 &&
         g.y_channels <= 112 && pixels_of_an_image(g) >= kFewPixels;
}

// Channels last:
// - one tap of few images 1.0 to 1.13, 1.09;
// - from one channel 1.12 to 1.55, 1.34; from 2 and 3, up to 3 taps an axis, 1.16 to 1.37, 1.27,
//   and of several images up to 4 1.0 to 1.35, 1.17; from 4 and 5, up to 3, 1.01 to 1.29, 1.09;
// - windows apart, of up to 16 channels of x and 24 of y, several images, 1.22 to 1.4, 1.3;
// - from up to 11, short rows of windows, 1.03 to 1.15, 1.06; from up to 8, up to 8 taps of much
//   data, 1.15 to 1.39, 1.26.
bool suits_float32_wgrad(const Problem& p) {
  constexpr int64_t kFewPixels = 250, kShortRow = 39;
  constexpr double kSomeBytes = 450 << 10, kManyBytes = 2500 << 10;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels;
  const double bytes = data_bytes_of_both(p);
  if (!has_channels_last(p)) return false;
  if (one_tap(g))
    return std::min(x, g.y_channels) > 8 && unit_strides(g) && !several_images(g) &&
           pixels_of_y(g) >= kFewPixels;
  if (apart(g) && unit_dilations(g) && x <= 16 && g.y_channels <= 24 && g.batch > 1) return true;
  if (x > 11) return false;
  const bool few_taps = taps_up_to(g, 3);
  if (x == 1 && (few_taps || several_images(g))) return true;
  if (x == 2 && few_taps) return true;
  if (x <= 5 && several_images(g) && taps_up_to(g, x <= 3 ? 4 : 3)) return true;
  return (g.axes[2].y <= kShortRow && bytes >= kSomeBytes) ||
         (x <= 8 && g.taps() <= 8 && bytes >= kManyBytes);
}

// Of stride 1, of whole vectors of channels: fprop 1.02 to 1.07, 1.05, dgrad 1.02 to 1.07, 1.06.
bool suits_bfloat16_image(const Geometry& g) {
  return g.rank == 2 && unit_strides(g) && whole_vectors(g) &&
         std::ranges::none_of(g.axes, widely_dilated) && pixels_of_an_image(g) >= 226 &&
         pixels_of_y(g) >= 452;
}

// From up to 7 channels, many pixels, 1.11 to 1.34, 1.22; from more, long rows of few taps or of
// large images, 1.01 to 1.15, 1.11.
bool suits_bfloat16_fprop(const Problem& p) {
  constexpr int64_t kManyPixels = 4400, kLargeImage = 8192, kLongRow = 38;
  constexpr double kBytes = 1100 << 10;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels, y = g.y_channels;
  if (padded_far(g) || std::ranges::any_of(g.axes, very_wide)) return false;
  if (x > 5 && data_bytes_of_both(p) < kBytes) return false;
  if (x <= 7) return y >= 6 && pixels_of_y(g) >= kManyPixels;
  if (suits_bfloat16_image(g)) return true;
  return y >= 8 && g.axes[2].y >= kLongRow &&
         (g.taps() <= 2 || pixels_of_an_image(g) >= kLargeImage);
}

// Large images of 12 channels and more, but windows that are whole strides long, 1.02 to 1.2, 1.13.
bool suits_bfloat16_dgrad(const Problem& p) {
  constexpr int64_t kLeastRow = 22, kLargeImage = 1400, kManyPixels = 16 << 10;
  const Geometry& g = p.geometry;
  const Axis& row = g.axes[2];
  if (suits_bfloat16_image(g) && row.x >= kLeastRow) return true;
  return std::min(g.x_channels, g.y_channels) >= 12 && !whole_strides(row) &&
         pixels_of_an_image(g) >= kLargeImage && pixels_of_x(g) >= kManyPixels;
}

// From one channel into up to 36 1.07 to 1.46, 1.30.
bool suits_bfloat16_wgrad(const Geometry& g) { return g.x_channels == 1 && g.y_channels <= 36; }

}  // namespace

bool suits_dense_kernels_of_zen_4(const Problem& p) {
  if (p.dtype != Dtype::f32 && p.dtype != Dtype::bf16) return false;
  if (misses_taps(p) || suits_volumes(p) || suits_strided_volumes(p) || suits_narrow_pixels(p))
    return true;
  if (p.dtype == Dtype::f32) {
    if (p.wanted == Role::w) return suits_float32_wgrad(p);
    return p.wanted == Role::y ? suits_float32_fprop(p) : suits_float32_dgrad(p);
  }
  if (!has_channels_last(p)) return false;
  if (p.wanted == Role::w) return suits_bfloat16_wgrad(p.geometry);
  return p.wanted == Role::y ? suits_bfloat16_fprop(p) : suits_bfloat16_dgrad(p);
}

}  // namespace convtbw
