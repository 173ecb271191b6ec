// Groups in float32 and bfloat16 on Zen 4 with AVX-512, instead of the other rules of groups, which
// mislead here. Two threads, 1900 layers in both layouts, of 1-D to 3-D: 980 random ones of 2 to
// 128 channels a group, on both sides alike or not, 90 of one tap, 450 depthwise ones. What is
// chosen takes longer than the better of both backends by so many per cent in the mean, by these
// rules (simd alone, the rules before):
//                              fprop            dgrad            wgrad
//   several channels
//     float32, channels last   4.3 (5.7, 6.5)   5.0 (6.9, 6.3)   3.1 (4.4, 5.3)
//     float32, channels first  2.7 (2.7, 3.3)   3.0 (4.4, 4.4)   1.3 (1.3, 1.2)
//     bfloat16, channels last  3.4 (9.2, 5.6)   4.1 (13.4, 7.7)  0.4
//     bfloat16, channels first 2.7              4.1              0.5
//   one tap, channels last
//     float32                  5.3 (21.5, 8.2)  6.6 (22.6, 6.4)  1.2 (10.9, 12.3)
//     bfloat16                 4.7 (29.1, 7.3)  4.6 (27.5, 9.0)  0.9
//   one channel, channels last
//     float32                  1.6 (2.1, 3.0)   1.8 (2.2, 4.7)   1.0 (1.3, 1.3)
//     bfloat16                 1.5 (1.8, 2.4)   0.7 (1.4, 1.4)   0.7
// Below: times of simd over oneDNN of the layers that a rule gives to oneDNN, quartiles and mean.
#include <algorithm>

#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

bool as_many(const Geometry& g) { return g.x_channels == g.y_channels; }

// Channels last, but groups of 8, which simd spreads in registers:
// - fprop, float32, larger images of up to 28 channels, if groups are many of 11 and more, 1.2 to
//   1.8, 1.48; bfloat16, of more than 5, no short rows, 1.2 to 2.0, 1.58;
// - dgrad, float32, of 5 and more, with more than 24 many pixels alone, 1.05 to 1.7, 1.29;
//   bfloat16, from more than 5, 1.2 to 2.0, 1.51;
// - wgrad, float32, 5 to 14 that are no multiple of 8, 1.2 to 1.7, 1.58.
bool suits_groups_of_one_tap(const Problem& p) {
  constexpr int64_t kLargeImage = 648, kManyPixels = 5184, kShortRow = 11, kFewGroups = 12;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels, y = g.y_channels;
  const auto [few, more] = std::minmax({x, y});
  const bool float32 = p.dtype == Dtype::f32;
  if (p.wanted == Role::w) return float32 && more >= 5 && more <= 14 && x % 8 != 0;
  if (x == 8 && y == 8) return false;
  if (p.wanted == Role::y) {
    if (!float32) return more > 5 && g.axes[2].x > kShortRow;
    return pixels_of_an_image(g) > kLargeImage && (g.groups <= kFewGroups ? x <= 28 : x > 10);
  }
  if (!float32) return y > 5 && pixels_of_y(g) > kLargeImage;
  return few >= 5 && (more <= 24 || pixels_of_x(g) > kManyPixels);
}

// Channels last, even sums:
// - fprop, up to 8 taps an axis, of as many channels: 16, more than 20 MFLOP, up to 10 taps or
//   longer rows, 1.1 to 1.5, 1.2; 10 and more but no multiple of 16, much data of few products, 1.0
//   to 1.27, 1.13;
// - of more channels on one side, into up to 9 1.2 to 2.0, 1.46; into more, large images, 1.0 to
//   1.5, 1.15;
// - dgrad of as many channels: 16 1.15 to 1.7, 1.35, but very few data; 10 and more but no multiple
//   of 8 1.0 to 1.9, 1.2; of more on one side, up to 18 or large images, up to 8 taps an axis, 1.1
//   to 1.7, 1.35.
bool suits_bfloat16_groups(const Problem& p) {
  constexpr int64_t kSomeFlops = 20'000'000, kFewFlopsOfAGroup = 12'800'000, kShortRow = 12;
  constexpr double kFewBytes = 100 << 10, kManyBytes = 1250 << 10;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels, y = g.y_channels;
  const auto [few, more] = std::minmax({x, y});
  const bool fprop = p.wanted == Role::y, short_windows = taps_up_to(g, 8);
  if ((fprop ? x : y) % 2 == 1 || few < 4 || padded_far(g)) return false;
  if (fprop) {
    if (!short_windows) return false;
    if (!as_many(g)) return (more > 6 && y <= 9) || pixels_of_an_image(g) > 704;
    if (x == 16) return flops(p) > kSomeFlops && (g.taps() <= 10 || g.axes[2].x > kShortRow);
    return x >= 10 && x % 16 != 0 && data_bytes_of_both(p) > kManyBytes &&
           flops(p) <= kFewFlopsOfAGroup * g.groups;
  }
  if (!unit_dilations(g)) return false;
  if (!as_many(g)) return short_windows && (more <= 18 || pixels_of_an_image(g) > 370);
  if (x == 16) return taps_up_to(g, 16) && data_bytes_of_both(p) > kFewBytes;
  return x > 8 && x % 8 != 0;
}

// Volumes of groups of 8, float32, channels last, fprop and dgrad, 19 layers: with strides, fprop
// of 3x3x3 and more, dgrad of 4x4x4 and more, 1.07 to 1.66, 1.32; images shorter than two
// windows 1.31 to 1.61; others 0.4 to 1.16, 0.85.
bool suits_volumes_of_8(const Problem& p) {
  const Geometry& g = p.geometry;
  const Axis& row = g.axes[2];
  return unit_strides(g) ? row.y < 2 * row.k : !taps_up_to(g, p.wanted == Role::y ? 2 : 3);
}

// Channels last, of as many channels: 16, some pixels of few data, 1.0 to 1.3, 1.1; 5 to 11 but 8,
// many pixels, 0.95 to 1.6, 1.26. Of more on one side, into no multiple of 8, up to 7 taps an axis,
// 0.96 to 1.5, 1.15; 4 beside 8 with strides 0.9 to 1.5, 1.19.
bool suits_float32_groups_of_fprop(const Problem& p) {
  constexpr int64_t kSomeFlops = 8'000'000, kManyFlops = 116'000'000, kSomePixels = 144,
                    kManyPixels = 5962;
  constexpr double kNearBytes = 5600 << 10;
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!as_many(g)) {
    if (few == 4 && more == 8 && !unit_strides(g)) return true;
    return few >= 4 && more > 6 && g.y_channels % 8 != 0 && taps_up_to(g, 7) &&
           flops(p) <= kManyFlops;
  }
  if (few == 8 && g.rank == 3) return suits_volumes_of_8(p);
  if (few == 16)
    return g.rank > 1 && flops(p) > kSomeFlops && pixels_of_y(g) > kSomePixels &&
           data_bytes_of_both(p) <= kNearBytes;
  return few >= 5 && few <= 11 && few != 8 && pixels_of_x(g) > kManyPixels;
}

// Channels last: into 8 from 16, and of 9 to 11 on both sides, 1.0 to 1.5, 1.25; of 8 on both, many
// taps of few products, 1.1 to 1.5, 1.25; of 16, short rows, 1.0 to 1.5, 1.2. Channels first:
// from a multiple of 8, up to 20, short rows of long sums, 0.95 to 1.55, 1.22.
bool suits_float32_groups_of_dgrad(const Problem& p) {
  constexpr int64_t kShortRow = 22, kVeryShortRow = 12, kLongSum = 100, kLeastFlops = 4'500'000,
                    kFewFlops = 25'600'000, kSomeFlops = 55'000'000;
  constexpr double kSomeBytes = 2400 << 10;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels, y = g.y_channels, row = g.axes[2].y, work = flops(p);
  if (!has_channels_last(p))
    return std::min(x, y) >= 4 && std::max(x, y) <= 20 && y % 8 == 0 && row <= kVeryShortRow &&
           y * g.taps() > kLongSum;
  if ((x == 8 && y == 16) || (as_many(g) && x >= 9 && x <= 11))
    return unit_dilations(g) && taps_up_to(g, 13);
  if (!as_many(g)) return false;
  if (x == 8 && g.rank == 3) return suits_volumes_of_8(p);
  if (x == 8) return g.taps() > 15 && work > kLeastFlops && work <= kFewFlops;
  return x == 16 && row <= kShortRow && (work <= kSomeFlops || data_bytes_of_both(p) > kSomeBytes);
}

// Channels last, few products: of 5 to 15 but 8 on both sides 1.0 to 1.9, 1.3; of up to 14 of x and
// more or fewer, from 6 on, of y 1.0 to 1.4, 1.18.
bool suits_float32_groups_of_wgrad(const Problem& p) {
  constexpr int64_t kFewSums = 109, kSomePixels = 1072, kFewFlops = 42'000'000,
                    kFewerFlops = 30'000'000;
  const Geometry& g = p.geometry;
  const int64_t x = g.x_channels, y = g.y_channels, work = flops(p);
  if (!unit_dilations(g) || x * g.taps() > kFewSums) return false;
  if (!as_many(g)) return std::min(x, y) >= 4 && y >= 6 && x <= 14 && work <= kFewerFlops;
  return x >= 5 && x <= 15 && x != 8 && pixels_of_x(g) > kSomePixels && work <= kFewFlops;
}

// 2-D, channels last:
// - float32, fprop of few products of much data, long rows, 1.04 to 1.29, 1.16; dgrad with strides,
//   up to 6 taps, 1.13 to 1.4, 1.2; wgrad up to 3x3 of many channels 1.0 to 1.25, 1.19;
// - bfloat16, fprop up to 4 taps of large images 1.0 to 1.37, 1.11; dgrad up to 7, with stride 1,
//   of which alone oneDNN has kernels, 1.08 to 1.32, 1.17.
bool suits_depthwise_kernels_of_zen_4(const Problem& p) {
  constexpr int64_t kFewFlops = 20'000'000, kManyPixels = 22'000, kLongRow = 60, kSomeRow = 38,
                    kManyChannels = 144;
  constexpr double kNearBytes = 3200 << 10, kSomeBytes = 3800 << 10, kFarBytes = 22 << 20;
  const Geometry& g = p.geometry;
  if (!has_depthwise_kernels(p) || !has_channels_last(p)) return false;
  const double bytes = data_bytes_of_both(p);
  const int64_t taps = g.taps(), row = g.axes[2].y;
  if (p.dtype == Dtype::bf16) {
    if (p.wanted == Role::w) return false;
    if (p.wanted == Role::x) return taps <= 7 && bytes > kNearBytes;
    return taps <= 4 && row > kSomeRow && pixels_of_y(g) > kManyPixels;
  }
  if (bytes > kFarBytes) return false;
  if (p.wanted == Role::w) return taps_up_to(g, 3) && g.groups >= kManyChannels;
  if (p.wanted == Role::x) return taps <= 6 && !unit_strides(g) && bytes > kNearBytes;
  return bytes > kSomeBytes && row > kLongRow && flops(p) <= kFewFlops;
}

}  // namespace

bool suits_grouped_kernels_of_zen_4(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool float32 = p.dtype == Dtype::f32;
  if (!float32 && p.dtype != Dtype::bf16) return false;
  if (g.x_channels == 1 && g.y_channels == 1) return suits_depthwise_kernels_of_zen_4(p);
  const bool channels_last = has_channels_last(p);
  if (channels_last && one_tap(g)) return suits_groups_of_one_tap(p);
  if (p.wanted == Role::w) return float32 && channels_last && suits_float32_groups_of_wgrad(p);
  if (!float32) return channels_last && suits_bfloat16_groups(p);
  if (p.wanted == Role::x) return suits_float32_groups_of_dgrad(p);
  return channels_last && suits_float32_groups_of_fprop(p);
}

}  // namespace convtbw
