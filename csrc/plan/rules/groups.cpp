// Groups of several channels in float32.
#include <algorithm>
#include <optional>

#include "core/cpu.h"
#include "core/group_vectors.h"
#include "core/winograd.h"
#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

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
  if (g.rank == 3 || few < 4 || !taps_up_to(g, 5) || !unit_dilations(g) || !has_channels_last(p))
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

// Groups of at least four channels on both sides, channels last, beside what is said of AMD's CPUs
// below. Times of simd over oneDNN, two threads of Zen 3, 200 random layers:
// - one tap, fprop and dgrad, 8 to 24 channels on a side, from 1.5 MB on 0.87 to 4, 1.4 in the
//   mean; less 0.75 to 1.3; wgrad 0.25 to 0.9;
// - wgrad of 4 to 4 with strides, k3 and k4, 32 groups and more, rows of up to 14 windows, up to
//   4 MB 0.93 to 1.7, 1.25 in the mean; of more bytes, longer rows, fewer groups or k5 0.3 to 1.35.
bool suits_grouped_kernels_of_zen_3(const Problem& p) {
  constexpr int64_t kBytes = 3 << 19, kMostBytes = 4 << 20, kManyGroups = 32, kShortRow = 14;
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (!has_channels_last(p)) return false;
  if (p.wanted != Role::w)
    return one_tap(g) && unit_strides(g) && few >= 8 && few <= 24 &&
           data_bytes_of_both(p) >= kBytes;
  return more == 4 && g.rank == 2 && g.axes[1].stride > 1 && g.axes[2].stride > 1 &&
         g.axes[2].k >= 3 && g.axes[2].k <= 4 && g.groups >= kManyGroups &&
         g.axes[2].y <= kShortRow && data_bytes_of_both(p) <= kMostBytes;
}

// Beyond which data of AMD's CPUs are far.
constexpr int64_t kFarBytes = 12 << 20;

// Groups with more channels on one side than on the other, channels last, which simd spreads in
// memory, as lanes of a vector are mostly those of several groups. Times of simd over oneDNN,
// AVX-512 kernels of both, two threads of Zen 5, 66 random layers of 2 to 48 channels, 1-D to 3-D:
// - fprop from up to 16 channels into 6 and more but no multiple of 16 0.9 to 7.7, 1.7 in the mean,
//   of one tap from any 1.1 to 2.6; others 0.3 to 1.3, once 2.1;
// - dgrad of up to 4 taps an axis from up to 24 channels into 5 and more but no multiple of 16 0.58
//   to 3.2, 1.4 in the mean, of one tap from any 1.05 to 2.2; others 0.46 to 1.3, once 2.3;
// - wgrad of 2 to 4 taps an axis, up to 12 channels of x beside more of y 0.74 to 4.3, 1.6 in the
//   mean; others 0.3 to 1.45, once 2.1.
// Two threads of Zen 4, 40 layers: fprop 0.64 to 2.5, 1.24 in the mean, others 0.35 to 2.9, 1.0 in
// the mean; dgrad and wgrad 0.65 to 2.3, 1.1 in the mean, of large images 0.65 to 0.9.
bool suits_unequal_groups(const Problem& p) {
  constexpr int64_t kMostTaps = 4, kLanes = lanes_of(true);
  const Geometry& g = p.geometry;
  if (!has_channels_last(p) || !unit_dilations(g) || std::min(g.x_channels, g.y_channels) < 2 ||
      (is_zen_4() && p.wanted != Role::y))
    return false;
  const bool few_taps = taps_up_to(g, kMostTaps);
  switch (p.wanted) {
    case Role::y:
      return g.y_channels >= 6 && g.y_channels % kLanes != 0 && (g.x_channels <= 16 || one_tap(g));
    case Role::x:
      return g.x_channels >= 5 && g.x_channels % kLanes != 0 && few_taps &&
             (g.y_channels <= 24 || one_tap(g));
    default:
      return g.x_channels <= 12 && g.x_channels < g.y_channels && few_taps && !one_tap(g);
  }
}

// Groups of 8 and 16 channels on both sides, if anything is said. Times of simd over oneDNN,
// AVX-512 kernels of both, two threads of Zen 5, 140 layers, mostly in 2-D:
// - 8, which are spread in registers: fprop and dgrad 0.4 to 0.95, 0.65 in the mean, but fprop of
//   one tap with strides, channels first, 1.3, as is wgrad; wgrad, channels last, of up to 2x2,
//   rows of up to 28 windows 1.1 to 1.6; of others 0.5 to 1.1;
// - 16: channels first 0.97 to 1.35, one tap 0.5 to 0.8; channels last, wgrad up to 12 MB 1.1 to
//   1.45, of more 0.55 to 1.0, fprop 1.04 to 1.5 but where simd broadcasts 0.75 to 1.13;
// - with dilations (50 more layers): 16, channels last, 0.9 to 2.9, 1.5 in the mean, channels first
//   5x5 and 7x7 1.06 to 2.0, 3x3 0.7 to 1.6, but wgrad whose taps reach beyond the image 0.1 and
//   0.2; 8 where they reach beyond half of it, channels last 0.94 to 2.2, fprop and dgrad of 5x5
//   and 7x7, channels first, 1.1 to 1.55, of 3x3 0.7, wgrad 0.2 to 0.3; others 0.65 to 1.2.
std::optional<bool> suits_grouped_kernels_of_zen_5(const Problem& p) {
  constexpr int64_t kLongRow = 32, kFewTaps = 4;
  const Geometry& g = p.geometry;
  if (g.x_channels != g.y_channels) return {};
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const bool wgrad = p.wanted == Role::w, fprop = p.wanted == Role::y;
  if (!unit_dilations(g)) {
    const bool gains = g.rank == 2 && !strides && (channels_last || g.axes.back().k >= 5);
    // Beyond the image, or a part of it.
    const auto reaches = [&](int64_t parts) {
      return std::ranges::any_of(
          g.axes, [&](const Axis& axis) { return parts * (axis.k - 1) * axis.dilation >= axis.x; });
    };
    if (g.x_channels == 8) return gains && reaches(2) && (channels_last || !wgrad);
    return g.x_channels == 16 && gains ? std::optional(!wgrad || !reaches(1)) : std::nullopt;
  }
  if (g.x_channels == 8) {
    if (!channels_last) return p.wanted != Role::x && one_tap(g) && strides;
    return wgrad && g.taps() <= kFewTaps && g.axes.back().y < kLongRow;
  }
  if (g.x_channels != 16 || one_tap(g)) return {};
  if (!channels_last) return g.rank == 2 ? std::optional(true) : std::nullopt;
  if (wgrad) return data_bytes_of_both(p) <= kFarBytes;
  return fprop && !strides ? std::optional(!groups_fill_vectors(p, lanes_of(true))) : std::nullopt;
}

// The same on Zen 4. Times of simd over oneDNN, AVX-512 kernels of both, two threads, 180 layers,
// mostly in 2-D; short rows are of up to 16 windows, long ones of 27 and more:
// - 8: one tap 0.25 to 1.2, but wgrad with strides, channels last, 1.05 to 2.1; wgrad 0.25 to 1.3,
//   0.7 in the mean (in 3-D, channels last, of 5 taps an axis and more 1.2 to 10); fprop 0.2
//   to 1.3, 0.85 in the mean, but 7x7, channels last, 0.9 to 1.65, and in 3-D with strides or of 5
//   taps an axis and more 0.8 to 4.4; dgrad 0.35 to 1.35, 0.9 in the mean, but 7x7, channels last,
//   0.8 to 1.85, with strides 0.9 to 1.8, in 3-D 0.95 to 3;
// - 16, in 2-D: channels last, one tap 0.85 to 2.4, wgrad with stride 1 0.58 to 0.86; up to 3x3
//   with short rows 0.94 to 1.9, of 1024 channels 0.58 to 1.3, long ones 0.43 to 0.94; larger
//   kernels 1.0 to 2.2, but 4x4 dgrad 0.78 to 1.0, wgrad with strides 0.8; channels first, one tap
//   and 2x2 0.37 to 1.04, 3x3 of 7x7 and of one image 0.91 to 1.3, of more 0.65 to 0.9, larger
//   kernels 0.8 to 1.33, mostly 1.05 to 1.2;
// - channels first with strides, of one image: 8, one tap and dgrad 1.07 to 1.87, 16, wgrad 1.13
//   to 2.0, dgrad 1.0 to 1.4; of several 0.2 to 1.0;
// - with dilations: wgrad 0.1 to 1.7, 0.5 in the mean; channels first 0.63 to 2.0, 1.2 in the mean,
//   but 3x3 of 8, up to 16x16, 0.65 to 0.8, of 16 with dilations of 12 0.75; channels last, 5x5 and
//   7x7 1.17 to 3.8; others of 8, rows of up to 28 windows 1.05 to 1.8, longer ones 0.6 to 0.8;
//   others of 16 0.56 to 1.57, with dilations of 4 and 12 1.45 to 1.7.
std::optional<bool> suits_grouped_kernels_of_zen_4(const Problem& p) {
  constexpr int64_t kShortRow = 20, kShortDilatedRow = 40, kLongRow = 100;
  const Geometry& g = p.geometry;
  const int64_t channels = g.x_channels, row = g.axes.back().y;
  const bool eight = channels == 8, image = g.rank == 2;
  if (channels != g.y_channels || (!eight && !(channels == 16 && image))) return {};
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const bool wgrad = p.wanted == Role::w, dgrad = p.wanted == Role::x;
  if (!unit_dilations(g)) {
    if (wgrad) return false;
    const int64_t dilation = g.axes.back().dilation;
    if (!channels_last) {
      if (taps_up_to(g, 3) && (eight ? row < kShortRow : dilation >= 12)) return false;
      return g.rank > 1 && row < kLongRow;
    }
    return image && (!taps_up_to(g, 4) || (row < kShortDilatedRow && (eight || dilation >= 4)));
  }
  if (eight) {
    if (one_tap(g)) return strides && (channels_last ? wgrad : g.batch == 1);
    if (wgrad) return g.rank == 3 && channels_last && !taps_up_to(g, 4);
    if (g.rank == 3) return dgrad || strides || !taps_up_to(g, 4);
    if (dgrad && strides) return image && (channels_last || g.batch == 1);
    return image && channels_last && !strides && !taps_up_to(g, 5);
  }
  if (one_tap(g)) return channels_last && (!wgrad || strides);
  if (!channels_last && strides && g.batch > 1) return false;
  if (channels_last && taps_up_to(g, 3)) return row < kShortRow;
  if (!channels_last && taps_up_to(g, 2)) return false;
  if (taps_up_to(g, 3) && row >= kShortRow) return false;
  if (!channels_last && !strides && taps_up_to(g, 3)) return row <= 8 || g.batch == 1;
  if (dgrad) return taps_up_to(g, 3) || strides || !taps_up_to(g, 4);
  if (wgrad) return !strides || !channels_last;
  return channels_last || !strides;
}

// Groups of 5 to 11 channels on both sides, channels last. Times of simd over oneDNN, AVX-512
// kernels of both, two threads of Zen 4, 57 random layers in 2-D: fprop and dgrad, one tap, 1.3 to
// 2.8; others that take up to 1.8 times as many products one after the other as together, up to 6
// MB, 0.78 to 2.2, 1.25 in the mean, more 0.4 to 1.0; those that take more 0.3 to 1.2; wgrad 0.3
// to 1.2.
bool suits_odd_groups_of_zen_4(const Problem& p) {
  constexpr int64_t kNearBytes = 6 << 20;
  const Geometry& g = p.geometry;
  if (p.wanted == Role::w || !has_channels_last(p)) return false;
  return one_tap(g) || (data_bytes_of_both(p) <= kNearBytes &&
                        products_one_by_one(g, g.x_channels, lanes_of(true)) <= 1.8);
}

// Groups of at least four channels on both sides on AMD's CPUs that are none for Winograd's
// filtering, without dilations if nothing is said. Times of simd over oneDNN, two threads of Zen 4,
// 1000 random layers of 2 to 32 groups of 4 to 32 channels, 1-D to 3-D, k1 to k9; others, and those
// not named, 0.1 to 1.2:
// - AVX-512 kernels of both, channels last, 8 beside 16, dgrad and wgrad 1.4 to 2.0; 16 channels:
//   dgrad 1.02 to 1.75; with strides wgrad and fprop up to 12 MB in 2-D and 3-D 0.9 to 1.5, of more
//   and in 1-D 0.4 to 1.4; 12 channels, wgrad of k3 1.2 to 1.68, once 0.84, else 0.7 to 1.4; one
//   tap of 8 and more 1.5 to 2.2, but wgrad of 16 and more with stride 1 0.4 to 0.8;
// - AVX2 kernels of both, 8 channels: dgrad 0.34 to 1.6, 0.9 in the mean; wgrad, channels last, in
//   2-D up to 12 MB 1.05 to 1.85, of more 0.5 to 0.75; fprop 0.5 to 0.9, in 1-D, channels last, 1.4
//   to 2.1. Two threads of Zen 3: fprop in 1-D, channels last, up to 7 taps 1.1 to 2.1, more 0.3
//   and 0.4. Where simd broadcasts (core/group_vectors.h), two threads of Zen 3, fprop and dgrad
//   0.3 to 1.05, 0.6 in the mean; wgrad up to 4x4, rows of 40 and more 0.3 to 1.0, shorter ones 0.6
//   to 1.7;
// - AVX-512 kernels of both, two threads of Zen 5, 700 random layers in 2-D, beside what is said
//   above: 16 channels by Winograd's filtering, fprop and dgrad, channels last, 0.9 to 1.5, 1.16 in
//   the mean, where simd broadcasts instead 0.6 to 1.1; wgrad of one tap of 64 0.5; 4 channels with
//   strides, up to 3 groups, dgrad and wgrad 1.14 to 1.24, more 0.5 (Zen 4 0.3 to 0.9).
bool suits_grouped_kernels_of_amd(const Problem& p, bool avx512) {
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  const int64_t taps = g.taps();
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const bool far = data_bytes_of_both(p) > kFarBytes;
  const bool as_many = few == more;
  const bool broadcasts = groups_fill_vectors(p, lanes_of(avx512));
  const bool zen_5 = avx512 && is_zen_5();
  if (avx512 && !as_many && suits_unequal_groups(p)) return true;
  if (few < 4) return false;
  if (avx512)
    if (const std::optional<bool> suits =
            zen_5 ? suits_grouped_kernels_of_zen_5(p) : suits_grouped_kernels_of_zen_4(p))
      return *suits;
  if (suits_winograd(p, lanes_of(avx512)))
    return zen_5 && few == 16 && as_many && p.wanted != Role::w && !broadcasts;
  if (!unit_dilations(g)) return false;
  if (!avx512) {
    if (is_zen_3() && suits_grouped_kernels_of_zen_3(p)) return true;
    if (few != 8 || !as_many || p.wanted == Role::x) return false;
    constexpr int64_t kLongRowOfWeights = 40;
    if (p.wanted == Role::y) return !broadcasts && channels_last && g.rank == 1 && taps <= 7;
    return channels_last && g.rank == 2 && !far &&
           (!broadcasts || g.axes.back().y < kLongRowOfWeights);
  }
  if (!channels_last) return false;
  if (few >= 8 && one_tap(g)) {
    if (p.wanted != Role::w) return true;
    return zen_5 ? few <= 32 : few < 16 || (few <= 32 && strides);
  }
  if (few == 8 && more == 16 && p.wanted != Role::y)
    return p.wanted == Role::x || strides || g.rank == 3 || taps < 9;
  if (!as_many) return false;
  if (is_zen_4() && few >= 5 && few < 12) return suits_odd_groups_of_zen_4(p);
  if (few == 12) return p.wanted == Role::w && g.rank > 1 && g.axes.back().k == 3;
  if (few == 16 && p.wanted == Role::x) return strides || !broadcasts;
  if (few == 4) return zen_5 && strides && p.wanted != Role::y && g.groups < 4;
  return strides && few == 16 && g.rank > 1 && !far;
}

}  // namespace

bool suits_grouped_kernels(const Problem& p, bool avx512) {
  if (p.dtype != Dtype::f32 || p.geometry.groups == 1) return false;
  return is_intel() ? suits_grouped_kernels_of_intel(p, avx512)
                    : suits_grouped_kernels_of_amd(p, avx512);
}

}  // namespace convtbw
