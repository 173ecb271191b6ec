// Dense problems and groups in bfloat16, not on Zen 4 (zen_4.cpp, zen_4_groups.cpp).
#include <algorithm>

#include "core/cpu.h"
#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

// Dense problems in bfloat16 on CPUs with its dot products, channels last. Times of simd over
// oneDNN, AVX-512 kernels of both, two threads of Zen 5, 1100 random layers of 1-D to 3-D (channels
// first, 1500 of them: wgrad 0.6 in the mean, fprop 0.75, dgrad 0.65, and 1.05 and more in 4, 17
// and 10 % of the layers, without a pattern):
// - one tap: fprop 1.1 to 3.8 (into 2 and 3 channels, two threads of Zen 4, 0.44 and 0.56), wgrad
//   with stride 1 from 16 channels on 0.8 to 1.5, mostly 1.05 to 1.2;
// - fprop from up to 47 channels to 3400 pixels and more 1.35 in the mean, from any to 1000 pixels
//   and more of a multiple of 16 channels 1.1; to fewer, or up to 3 channels, 0.6 to 1.0; from up
//   to 3, very wide windows, 0.23, from up to 7 with padding of 16 0.13 to 0.3, once 0.8 (Zen 4);
// - dgrad into 12 channels and more of windows that are whole strides long 0.3 to 1.1, 0.65 in the
//   mean; of others from up to 23 channels, fewer than 49 taps, 1.3 to 1.6; from 3400 pixels and
//   more, up to 6 taps, 1.35; from 1000 and more, stride 1, 1.1; to up to 3 channels 0.55; all
//   others 0.75;
// - wgrad of up to 23 channels on both sides, 1-D and 2-D, 1.3, of few pixels 0.7; others 0.7; rows
//   of 15 and 16 taps 0.23 to 1.1, of more 0.15 to 0.4;
// - fprop and dgrad with dilations of 4 and more 0.4 to 1.2, 0.9 in the mean, from or into up to 16
//   channels 0.75 to 1.35.
bool suits_bfloat16_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (!has_bfloat16_products() || p.dtype != Dtype::bf16 || g.groups != 1) return false;
  if (!has_channels_last(p)) return false;
  // Slices run one after the other: 1.1 to 1.2 times the time of simd with 7 to 23 MFLOP in each,
  // as long with 230; from 3 channels 0.75.
  constexpr int64_t kSmallSliceFlops = 50'000'000;
  if (p.slices > 1 && g.x_channels > 3 && flops(p) / p.slices < kSmallSliceFlops) return false;
  const int64_t taps = g.taps();
  const int64_t pixels = pixels_of_y(g);
  const bool strides = !unit_strides(g);
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (p.wanted != Role::w && few > 16 && std::ranges::any_of(g.axes, widely_dilated)) return false;
  const Axis& row = g.axes.back();
  const bool many_pixels = pixels >= 3400, some_pixels = pixels >= 1000;
  if (p.wanted == Role::y && g.x_channels <= 3 && std::ranges::any_of(g.axes, very_wide))
    return false;
  if (p.wanted == Role::y && g.x_channels < 8 && padded_far(g)) return false;
  if (p.wanted == Role::y)
    return g.y_channels >= 4 && (taps == 1 || (many_pixels && g.x_channels < 48) ||
                                 (some_pixels && g.y_channels % 16 == 0));
  if (p.wanted == Role::x)
    return g.x_channels >= 4 && !(whole_strides(row) && g.x_channels >= 12) &&
           ((taps <= 6 && many_pixels) || (taps < 49 && g.y_channels < 24) ||
            (taps <= 49 && some_pixels && !strides && g.x_channels >= 12));
  if (taps == 1 && !strides && few >= 16) return true;
  if (row.k >= 15) return false;
  return more < 24 && g.rank < 3 && many_pixels;
}

// Groups in bfloat16 on the same CPUs, mostly channels last, of as many channels on both sides.
// Times of simd over oneDNN, AVX-512 kernels of both, two threads of Zen 5, 580 random layers in
// 2-D of 2 to 32 groups, k1 to k5:
// - fprop and dgrad: 8 channels, which are spread in registers, 0.5 to 0.93, 0.65 in the mean, one
//   tap too; 16 0.8 to 2.3, 1.5 in the mean; 12 with strides 0.85 to 1.55, 1.3 in the mean, else
//   0.9; 24, 32 and 64 0.35 to 1.75, 0.9 in the mean; one tap of 16 to 32 channels 1.1 to 4, of 64
//   0.55 to 1.85;
// - wgrad of 8 channels 0.4 to 0.9, 3x3 and more with strides, rows of 32 windows and more, 1.15 to
//   1.2; of 16, several images, 1.0 to 1.3; of others 0.2 to 1.7, 0.8 in the mean; of 4, which are
//   spread, 0.3.
// Sums over an odd number of channels, and with padding of 16 and more, which oneDNN computes as
// products of matrices, 0.06 to 0.9 (40 layers of Zen 4).
bool suits_bfloat16_grouped_kernels(const Problem& p) {
  constexpr int64_t kLongRow = 32, kFewTaps = 4;
  const Geometry& g = p.geometry;
  const int64_t channels = g.x_channels;
  if (!has_bfloat16_products() || p.dtype != Dtype::bf16 || g.groups == 1 || !unit_dilations(g))
    return false;
  if (!has_channels_last(p)) return false;
  const int64_t summed = p.wanted == Role::y ? channels : g.y_channels;
  if (p.wanted != Role::w && (summed % 2 == 1 || padded_far(g))) return false;
  if (channels != g.y_channels) return false;
  if (p.wanted == Role::w) {
    if (g.taps() <= kFewTaps) return false;
    return channels == 16 ? g.batch > 1
                          : channels == 8 && !unit_strides(g) && g.axes.back().y >= kLongRow;
  }
  if (one_tap(g)) return channels > 10 && channels <= 32;
  return channels == 16 || (channels == 12 && !unit_strides(g));
}

}  // namespace convtbw
