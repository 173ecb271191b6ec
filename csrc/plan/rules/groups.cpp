// Groups of several channels in float32, not on Zen 4 with AVX-512 (zen_4_groups.cpp).
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
bool suits_unequal_groups(const Problem& p) {
  constexpr int64_t kMostTaps = 4, kLanes = lanes_of(true);
  const Geometry& g = p.geometry;
  if (!has_channels_last(p) || !unit_dilations(g) || std::min(g.x_channels, g.y_channels) < 2)
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
  if (avx512 && !as_many && suits_unequal_groups(p)) return true;
  if (few < 4) return false;
  if (avx512)
    if (const std::optional<bool> suits = suits_grouped_kernels_of_zen_5(p)) return *suits;
  if (suits_winograd(p, lanes_of(avx512)))
    return avx512 && few == 16 && as_many && p.wanted != Role::w && !broadcasts;
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
  if (few >= 8 && one_tap(g)) return p.wanted != Role::w || few <= 32;
  if (few == 8 && more == 16 && p.wanted != Role::y)
    return p.wanted == Role::x || strides || g.rank == 3 || taps < 9;
  if (!as_many) return false;
  if (few == 12) return p.wanted == Role::w && g.rank > 1 && g.axes.back().k == 3;
  if (few == 16 && p.wanted == Role::x) return strides || !broadcasts;
  if (few == 4) return strides && p.wanted != Role::y && g.groups < 4;
  return strides && few == 16 && g.rank > 1 && !far;
}

}  // namespace

bool suits_grouped_kernels(const Problem& p, bool avx512) {
  if (p.dtype != Dtype::f32 || p.geometry.groups == 1) return false;
  return is_intel() ? suits_grouped_kernels_of_intel(p, avx512)
                    : suits_grouped_kernels_of_amd(p, avx512);
}

}  // namespace convtbw
