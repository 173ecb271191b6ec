// The backend's row: targets, and which plan serves a problem.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "backends/simd/far_bytes.h"
#include "backends/simd/in_place.h"
#include "backends/simd/kernels.h"
#include "backends/simd/plans.h"
#include "backends/simd/simplify.h"
#include "core/cpu.h"
#include "core/group_vectors.h"
#include "core/half_vectors.h"
#include "core/winograd.h"

namespace convtbw {

namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

const simd::Arithmetic& avx2_beside_avx512() {
  static const simd::Arithmetic arithmetic = [] {
    simd::Arithmetic named = *simd::avx2::kKernels.f32;
    named.name = "f32 of 8 lanes";
    return named;
  }();
  return arithmetic;
}
#endif

simd::Kernels kernels_of(std::string_view target) {
#if defined(__x86_64__)
  if (target == "avx2") return simd::avx2::kKernels;
  if (target == "avx512") {
    simd::Kernels kernels = simd::avx512::kKernels;
    if (has_avx512_bf16()) kernels.bf16_pairs = &simd::avx512_bf16::kPairs;
    if (is_zen_4()) kernels.f32_of_half_lanes = &avx2_beside_avx512();
    return kernels;
  }
#endif
  return target == "generic512" ? simd::generic512::kKernels : simd::generic::kKernels;
}

const simd::InPlaceKernels& in_place_kernels_of(std::string_view target) {
#if defined(__x86_64__)
  if (target == "avx2") return simd::avx2::kInPlace;
  if (target == "avx512") return simd::avx512::kInPlace;
#endif
  return target == "generic512" ? simd::generic512::kInPlace : simd::generic::kInPlace;
}

// Of expanded tensors, and of strides, more than an integer holds.
double product(std::initializer_list<int64_t> factors) {
  double all = 1;
  for (const int64_t factor : factors) all *= static_cast<double>(factor);
  return all;
}

// Below this a parallel region costs more (2 to 5 us) than a second thread saves.
constexpr int64_t kSerialFlops = 500'000;

// Whether lanes should be channels of all groups, rather than of one group after the other, whose
// channels fill no vector. Time of one group after the other over that of all groups:
// - 3x3 on 28x28, three contractions, two layouts (Zen 4): with 8 lanes 1.9 to 8.6 in groups of 2,
//   2.8 to 4.2 of 4; with 16 lanes 1.0 to 4.4 of 4, 1.07 to 1.6 of 8. Depthwise, 56x56: 2.9 to 34.
// - 30 random layers, two dtypes (Ice Lake): wgrad of 5 to 15 channels first 0.18 to 1.1, 0.65 in
//   the mean with 16 lanes, 0.5 to 1.0 with 8, of 4 0.5 to 1.7; of 9 to 15 channels last 0.2 to
//   0.9, of 8 1.0 in the mean, of 5 to 7 0.6 to 2.0; fprop and dgrad of 12 0.7 to 1.0, of 8 and
//   10 1.5; but wgrad of 8, channels first, 16 lanes that are spread in registers 0.99 to 2.0
//   (Zen 5).
bool few_channels_a_group(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (g.groups == 1 || more >= lanes) return false;
  if (p.wanted != Role::w) return few < 12;
  return groups_share_vectors(p, lanes) || few < (p.x.channel == 1 || p.y.channel == 1 ? 9 : 5);
}

bool dilated(const Geometry& g) {
  return std::ranges::any_of(g.axes,
                             [](const Axis& axis) { return axis.k > 1 && axis.dilation > 1; });
}

// Of all taps of all windows the part that meets x.
double present_part(const Geometry& g) {
  double present = 1;
  for (const Axis& axis : g.axes)
    present *= static_cast<double>(present_taps(axis)) / static_cast<double>(axis.k * axis.y);
  return present;
}

// Whether lanes should be pixels, rather than the result's channels. Time of channels in lanes over
// that of pixels, 360 random layers, k2 to k16, two layouts, float32 and bfloat16 (Zen 5):
// - 16 lanes, fewer than 12 channels 1.75 to 2.2 in the mean, 12 to 24 0.55 to 0.7 (of one axis,
//   up to four taps, 1.1 to 1.2);
// - 8 lanes, fewer than 8 channels 1.9, 8 to 24 0.65 to 0.7; but 9 to 12 and 17, 18 from at least 8
//   times as many 1.15;
// - pixels that are not neighbours share nothing: strides of fprop 0.35 to 0.8;
// - taps that are absent are multiplied. With dilations, 64x64 and 33x33, 2-D, by the channels'
//   square root over the parts of taps that are present and of vectors that pixels fill: 16 lanes
//   up to 3 1.6 to 3.2, 3.5 1.4 to 1.5, 5 0.75 to 1.3, more 0.3 to 1.0; 8 lanes up to 3 1.05
//   to 2.7, more 0.5 to 1.0 (k3 and k7, dilations of 2 to 18).
bool few_channels(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  const Axis& last = g.axes.back();
  const bool fprop = p.wanted == Role::y;
  const int64_t channels = fprop ? g.y_channels : g.x_channels;
  const int64_t others = fprop ? g.x_channels : g.y_channels;
  if (fprop && last.stride > 1) return false;
  const auto padded = [&](int64_t count) { return (count + lanes - 1) / lanes * lanes; };
  // Of the lanes of a row of the operand those that belong to windows.
  const int64_t pixels = last.y, row = padded(fprop ? last.x : last.y);
  if (dilated(g)) {
    const double filled = static_cast<double>(pixels) / static_cast<double>(row);
    const double most = (lanes > 8 ? 5.0 : 3.2) * filled * present_part(g);
    if (static_cast<double>(channels) > most * most) return false;
  }
  if (2 * channels < lanes) return true;
  if (pixels * padded(channels) < channels * row) return false;
  if (channels < (lanes > 8 ? 12 : 8)) return true;
  return channels <= 24 && others >= 8 * channels && 4 * channels <= 3 * padded(channels);
}

// Whether a channel's rows can be slid over: of depthwise problems, channels first.
bool slides_over_planes(const Problem& p) {
  const Geometry& g = p.geometry;
  if (g.x_channels != 1 || g.y_channels != 1 || p.slices > 1) return false;
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1 || p.x.channel == 1 || p.y.channel == 1)
    return false;
  for (const Axis& axis : g.axes)
    if (axis.k < axis.stride || (p.wanted == Role::x && axis.stride > 1)) return false;
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
//   bfloat16 1.07 to 1.55; 2x2 1.03 to 1.4, from 64x64 on 0.76 to 0.9; 3x3x3 up to 28x28 0.95 to
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
  if (!slides_over_planes(p)) return false;
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
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
    const bool far = data_bytes_of_both(p) > simd::far_bytes().planes;
    if (depth.k > 1) return windows >= 32 && (whole || (!halves && !far));
    if (row.k < 3) return windows >= 48;  // not in bands
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

// Whether lanes should be pixels of a 1x1 convolution that both tensors hold side by side: nothing
// is transposed. Time of channels in lanes over that of pixels, one thread (Zen 4; float32 with 16
// lanes, with 8, bfloat16 with 16, with 8): 64 to 256 channels of 56x56 1.24, 1.30, 1.1 to 1.3,
// 1.11; 256 to 64 1.26, 1.41, 1.7, 1.27; 64 to 32 of 32x32x32 1.4, 1.34, 1.6, 1.14; 512 to 512 of
// 1000 1.01, 1.10, 1.12, 1.05; 1024 to 256 of 14x14 1.00, 1.10, 1.05, 1.03. Few channels gain
// most, 3 to 64 1.65, 2.0, 1.4, 1.16. An image's last vector is what it loses: 0.76 to 0.98 for 49
// pixels, 0.85 to 1.08 for 100. So are few pixels of many weights, which take longer to pack for
// rows of tiles than for lanes, two threads of Zen 5, 40 layers: 64 to 800 pixels of 256 K weights
// and more 0.43 to 1.0, 0.85 in the mean (fewer weights 0.9 to 1.4, 900 pixels 1.0); 8 lanes, up to
// 400 of 64 K 0.69 to 1.05, 0.9 (fewer weights 0.9 to 1.0, more pixels 0.97 to 1.2).
bool pointwise_pixels(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  if (!std::ranges::all_of(g.axes, pointwise) || g.axes[0].x > 1 || g.axes[1].x > 1) return false;
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1) return false;
  // Channels last: of images of one row, or of overlapping rows.
  if (p.x.channel == 1 || p.y.channel == 1) return false;
  const double few_pixels = lanes > 8 ? 800 : 400, many_weights = lanes > 8 ? 256 << 10 : 64 << 10;
  if (product({g.batch, g.axes.back().x}) <= few_pixels &&
      product({g.x_channels, g.y_channels}) >= many_weights)
    return false;
  // Of pixels side by side at least a tile's width is held.
  constexpr int64_t kMostBytes = 1 << 20;
  const int64_t channels = p.wanted == Role::y ? g.x_channels : g.y_channels;
  const int64_t pixels = g.axes.back().x, padded = (pixels + lanes - 1) / lanes * lanes;
  return 16 * pixels >= 15 * padded && 2 * channels * 64 <= kMostBytes;
}

// Whether the tensors of a 1x1 convolution should be read and written where they lie. Time of the
// other plans over that of these, one thread (Zen 4; float32 with 16 lanes, with 8):
// - channels first, 2 images of 64x64: fprop and dgrad 32 to 2 channels 2.6, 2.4, 64 to 4 1.65 to
//   1.9, 1.5 to 1.9, 64 to 8 1.2 to 1.9, 1.4 to 1.6, 256 to 2 3.2, 2.9, 16 to 16 1.1 to 1.3, 1.5,
//   64 to 16 0.9, 1.1; wgrad 64 to 1 4.3, 3.8, 64 to 8 1.8, 1.9, 64 to 16 1.05, 1.6, 32 to 24
//   0.9, 1.1, 512 to 16 0.6, 0.6; groups of 1 to 8 channels 2.1 to 6.5, 1.6 to 5.7;
// - channels last: to 64 channels from 1 4.8, 2.4, from 8 1.3, 1.7, from 21 1.1, 1.8, to 256 from
//   24 1.02, 1.3; wgrad 64 to 1 4.2, 3.9, 64 to 8 2.3, 1.5, 64 to 21 1.1, 1.5, 256 to 24 0.95, 0.9.
// Where the others multiply pairs of bfloat16, with which these do not: 64 to 8 0.85 to 1.25, 16 to
// 16 0.8 to 1.1, wgrad, channels last, 16 to 16 and 64 to 21 0.9; 64 to 8 1.7, 32 to 2 1.9 to 6.4;
// fprop and dgrad, channels last, from 10 1.0 to 1.3, from 16 to 24 0.65 to 0.9 (Zen 5).
std::optional<simd::Lanes> in_place(const Problem& p, int64_t lanes, bool pairs) {
  const Geometry& g = p.geometry;
  if (!std::ranges::all_of(g.axes, pointwise) || g.axes[0].x > 1 || g.axes[1].x > 1) return {};
  const bool wgrad = p.wanted == Role::w;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (p.x.axes.back() == 1 && p.y.axes.back() == 1 && g.axes.back().x >= lanes) {
    const int64_t most = pairs ? 4 : 8;
    const bool suits = wgrad ? few <= 16 && few * more <= (few <= 8 ? 2048 : 1024)
                             : few <= most || more <= 2 * most;
    return suits ? std::optional(simd::Lanes::pixels) : std::nullopt;
  }
  const bool lanes_of_y = wgrad ? g.y_channels >= g.x_channels : p.wanted == Role::y;
  const auto [channels, others] =
      lanes_of_y ? std::pair(g.y_channels, g.x_channels) : std::pair(g.x_channels, g.y_channels);
  const bool neighbours = (lanes_of_y ? p.y : p.x).channel == 1 && channels >= lanes;
  const bool suits = others <= (pairs ? 12 : 24) && (!wgrad || few * more <= 4096);
  return neighbours && suits ? std::optional(simd::Lanes::channels) : std::nullopt;
}

// Whether lanes should be the channels of one tap that are summed over, of which many become few.
// Time of the other plans over that of these, channels last, two threads of Zen 3, float32 and
// bfloat16, from 8 to 768 channels: into 1 to 4 1.8 to 4.2, 5 to 7 1.4 to 2.1, 8 0.35 to 1.4, more
// 0.7 to 1.1.
bool dot_products(const Problem& p, int64_t lanes) {
  // As few steps a sum as a blocked gemm has (folded_runs.h).
  constexpr int64_t kMostVectors = 96, kMostChannels = 7;
  const Geometry& g = p.geometry;
  if (p.wanted == Role::w || !std::ranges::all_of(g.axes, pointwise) || g.axes[0].x > 1 ||
      g.axes[1].x > 1 || g.axes[2].x < simd::kDotPixels)
    return false;
  const bool fprop = p.wanted == Role::y;
  const auto [from, into] =
      fprop ? std::pair(g.x_channels, g.y_channels) : std::pair(g.y_channels, g.x_channels);
  return (fprop ? p.x : p.y).channel == 1 && into <= kMostChannels && from >= lanes &&
         from <= kMostVectors * lanes;
}

// Whether lanes should be pixels of a row, and windows slide over rows that are copied channel by
// channel: nothing is transposed, and results of any number of channels fill tiles. Time over that
// of channels in lanes, fprop and dgrad, 1-D to 3-D, two threads of Zen 4, 1500 random layers of 1
// to 128 channels into 8 to 128: with `steps` (channels, or pairs, times taps) and what part of
// their vectors channels and pixels fill, within 10 % in the mean
//   1.05 (8 lanes 1.15) * filled(channels) / filled(pixels) / (1 + 10 / steps),
// 0.7 in the mean of those chosen, 0.25 at best (1 to 3 channels of rows of 1000 and more), of 3 %
// more than 1.05, at most 1.35. Of many channels few rows fit: with 8 lanes from 96 on 1.0 to 1.2.
// Over that of pixels in lanes whose sums are shifted (few_channels), 16 lanes: from up to 32
// channels into 4 to 11 0.55 to 1.05, 0.8 in the mean; into 1 to 3 1.0 to 1.6; into 20 and 24 from
// 192 and more 0.9 to 1.0; 8 lanes: into 3 to 7 0.5 to 1.05, into 1 and 2 1.0 to 1.5. Over that of
// grouped_data_plan, 340 layers of 2 to 64 groups of few channels: 16 lanes, into 4 and more 0.23
// to 1.0, 0.55 in the mean, into 2 and 3 0.65 to 1.4; pairs into 2 and more 0.13 to 0.75, 0.35 in
// the mean; 8 lanes, into 3 and more 0.36 to 0.9; rows of 4 to 8 pixels up to 2. But groups that
// are spread in registers (two threads of Zen 5, 2x2 to 7x7): of 4 and 8, rows of fewer than 32
// results, 16 lanes 1.02 to 3.1, 8 lanes 1.0 to 2.5, of 32 and more 0.72 to 1.05, strides of fprop
// 0.74 to 1.25; pairs, of 2 1.4 to 3.7 (3x3 of 64 0.9), of 4 below 64 results 1.1 to 2.8, of 8
// below 32 1.2 to 1.9, of more 0.75 to 1.1.
bool slid_pixels(const Problem& p, int64_t lanes, bool pairs) {
  // What a vector of windows meets is a small part of a box: of 192 channels of 5x5x5 positions it
  // was all of it, and took 2.3 times as long.
  constexpr int64_t kMostUnits = 32 << 10;
  const Geometry& g = p.geometry;
  const bool fprop = p.wanted == Role::y;
  const Axis& row = g.axes.back();
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1 || p.x.channel == 1 || p.y.channel == 1)
    return false;
  for (const Axis& axis : g.axes)
    if (axis.k < axis.stride || (!fprop && axis.stride > 1)) return false;
  if (row.stride > 2 || g.taps() == 1) return false;
  const auto [from, into] =
      fprop ? std::pair{g.x_channels, g.y_channels} : std::pair{g.y_channels, g.x_channels};
  if (from > (lanes > 8 ? 256 : 64)) return false;
  const int64_t units = pairs ? (from + 1) / 2 : from;
  int64_t held = units;
  for (const Axis& axis : g.axes) {
    const int64_t extent = effective_kernel(axis.k, axis.dilation) + (&axis == &row ? lanes : 0);
    if (extent > kMostUnits / held) return false;
    held *= extent;
  }
  const auto filled = [lanes](int64_t count) {
    return static_cast<double>(count) / static_cast<double>((count + lanes - 1) / lanes * lanes);
  };
  const double row_filled = filled(fprop ? row.y : row.x);
  constexpr int64_t kLongRow = 32, kManyResults = 256;
  const int64_t results = fprop ? row.y : row.x;
  if (groups_share_vectors(p, lanes) && g.groups * into >= lanes &&
      (pairs ? into * results < kManyResults : into >= 4 && results < kLongRow))
    return false;
  if (few_channels_a_group(p, lanes))
    return into >= (pairs ? 2 : lanes > 8 ? 4 : 3) && row_filled > 0.6;
  if (few_channels(p, lanes) && into < (lanes > 8 ? 12 : 8))
    return into >= (lanes > 8 ? 4 : 3) && from <= 32;
  const double half_empty =
      pairs ? 2.0 * static_cast<double>(units) / static_cast<double>(from) : 1;
  return (lanes > 8 ? 1.05 : 1.15) * filled(into) * half_empty <
         row_filled * (1 + 10 / static_cast<double>(units * g.taps()));
}

// Whether lanes should be taps and the few channels of the result, whose operand has its channels
// last. Time over that of the other plans, 2-D, 270 random layers of 1 to 7 channels, two threads
// of Zen 3, 8 lanes:
// - float32, up to 16 taps: from 32 channels on 0.5 to 1.15, 0.8 in the mean, from 16 and 24 0.8 to
//   1.5, 1.05 in the mean; 25 taps 0.75 to 1.25; 49 and 81 0.8 to 2.5, 1.15 in the mean;
// - 16 bits, whose operand is copied, up to 16 taps: strides, or from 96 channels on, 0.6 to 1.2,
//   0.9 in the mean, others 0.8 to 1.3, 1.04 in the mean.
// Of Zen 5, 16 lanes, 220 layers: float32 from 96 channels on 0.35 to 1.25, 0.86 in the mean, from
// 32 and 64 0.8 to 1.5, 1.02 in the mean; float16 0.5 to 1.6, 1.0 in the mean.
bool tap_lanes(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  const bool fprop = p.wanted == Role::y;
  if (p.wanted == Role::w || (fprop ? p.x : p.y).channel != 1) return false;
  if (!pointwise(g.axes[0]) || g.taps() == 1 || g.taps() > 16) return false;
  bool strides = false;
  for (const Axis& axis : g.axes) {
    if (axis.k < axis.stride || (axis.k > 1 && axis.dilation > 1)) return false;
    strides |= axis.stride > 1;
  }
  const bool halves = p.dtype == Dtype::bf16 || p.dtype == Dtype::f16;
  const auto [from, into] =
      fprop ? std::pair(g.x_channels, g.y_channels) : std::pair(g.y_channels, g.x_channels);
  // Packed, with what their vectors leave empty.
  constexpr double kMostWeights = 1 << 20;
  const int64_t padded = (g.taps() * into + lanes - 1) / lanes * lanes;
  if (lanes > 8 && halves) return false;
  const bool many = lanes > 8 || (halves && !strides);
  return !(fprop && strides) && into <= 7 && from >= (many ? 96 : 32) &&
         product({g.groups, from, padded}) <= kMostWeights;
}

// Whether lanes should be the phases of a row too: x's results that lie side by side. Time over
// that of the other plans, 2-D, channels last, float32 and bfloat16 (pairs with 16 lanes), two
// threads of Zen 5, 580 random layers, 8 and 16 lanes:
// - windows that tile rows, from 8 channels on 0.45 to 1.0 (0.8 in the mean), 0.3 to 0.97 (0.65);
// - longer ones, rows of 16 windows and more, where phases fill vectors better than channels or
//   these fill up to one 0.5 to 1.05 (0.8 in the mean), 0.4 to 1.15 (0.75); filled alike 0.95 to
//   1.1; where phases leave a fifth empty, over lanes of pixels, 1.04 to 1.35; of 7 windows 0.8 to
//   1.4;
// - fewer channels 0.3 to 3.3, 1.2 in the mean.
bool row_phases(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  const Axis& row = g.axes.back();
  if (p.wanted != Role::x || g.groups > 1 || row.stride == 1 || row.dilation > 1) return false;
  if (row.k % row.stride != 0 || row.x < 2 * row.stride) return false;
  if (p.x.channel != 1 || p.x.axes.back() != g.x_channels ||
      p.w.axes.back() != g.x_channels * p.w.x_channel)
    return false;
  constexpr int64_t kLeastChannels = 8, kLeastWindows = 12;
  const auto filled = [lanes](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(ceil_div(count, lanes) * lanes);
  };
  const double alone = filled(g.x_channels), joined = filled(g.x_channels * row.stride);
  if (g.x_channels < kLeastChannels || joined < alone) return false;
  if (joined < 0.8 && few_channels(p, lanes)) return false;
  if (row.k == row.stride) return true;
  return row.y >= kLeastWindows && (g.x_channels <= lanes || joined > 1.05 * alone);
}

// Whether rows that leave the same remainder modulo the dilation should be planes of their own.
// Time of the other plans over that of these, 2-D, operands that have to be copied, 100 random
// layers of 3x3 to 7x7, two threads of Zen 5, 16 and 8 lanes:
// - from twice as many channels as into and more, dilations from 4 on 0.9 to 5.7, 1.3 in the mean,
//   of 2 and 3 0.5 to 1.5, 1.0;
// - from fewer, dilations from 13 on 0.95 to 1.8, 1.2, but from less than a fourth as many 0.85 to
//   1.0; of 4 to 12 0.75 to 1.25, 0.97;
// - few pixels, of whose remainders some have a row more, 0.75 to 1.0.
// A copy of all of the operand takes 0.5 to 1.0 of the time of these, once 1.1.
bool dilated_rows(const Problem& p) {
  constexpr int64_t kFewPixels = 1024;
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
  if (p.wanted == Role::w || !pointwise(depth) || depth.x > 1) return false;
  if (rows.k == 1 || rows.stride > 1) return false;
  if (rows.pad % rows.dilation != 0 || (rows.x - rows.y) % rows.dilation != 0) return false;
  if (std::min(rows.x, rows.y) < rows.dilation) return false;
  if (rows.x % rows.dilation != 0 && g.batch * rows.y * row.y <= kFewPixels) return false;
  const auto [from, into] = p.wanted == Role::y ? std::pair{g.x_channels, g.y_channels}
                                                : std::pair{g.y_channels, g.x_channels};
  return from >= 2 * into ? rows.dilation >= 4 : 4 * from >= into && rows.dilation >= 13;
}

// Whether dgrad should be computed phase by phase: the results of few windows fill the stage. Time
// without phases over that with them, 2-D and 3-D, two layouts, 8 lanes (Zen 3): strides of 10 to
// 32 from 256 windows on 1.0 to 2.9, 1.5 in the mean; fewer windows, which are too few for tiles of
// one phase, 0.33 to 1.0; windows that tile x 1.5 to 2 channels first, 0.85 to 1.07 channels last.
bool results_fill_stage(const Problem& p, const Axis& axis) {
  constexpr int64_t kLanes = 64, kWindows = 256, kMostResults = 4 << 10;
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
  const double windows = product({g.batch, depth.y, rows.y, row.y});
  const double results =  // of a window
      product({depth.stride, rows.stride, row.stride, std::min(kLanes, g.x_channels)});
  return axis.dilation == 1 && axis.k >= (p.x.channel == 1 ? 3 * axis.stride / 2 : axis.stride) &&
         windows >= kWindows && results > kMostResults && g.x_channels > 3;
}

// The axis along which a problem should be computed phase by phase: its windows are many rows
// apart, and, but for dgrad, overlap by at least half of what lies between. Time without phases
// over that with them, 2-D and 3-D, two layouts, 8 lanes (Zen 3, 280 random layers):
// - wgrad, strides of 16 and 32 1.0 to 4.8, 1.9 in the mean (21 to 21 channels, 64x64, stride 32, 6
//   to 10); of 8 0.8 to 2.2, 1.1 in the mean, where a row of windows meets as much, or weights and
//   long rows of taps are as many; of fewer 0.65 to 1.0, of strides up to 5 0.8 to 1.05;
// - fprop, where a row of windows meets as much 1.02 to 3.2, 1.4 in the mean; less 0.75 to 1.1;
//   where the other axes have up to 3 taps 0.7 to 1.2.
// Windows of which less overlaps share little: 0.7 to 0.95.
std::optional<int> phased_axis(const Problem& p) {
  constexpr int64_t kManyWeights = 64 << 10, kTaps = 8;
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
  const int a = depth.stride > rows.stride ? 0 : 1;
  const Axis& axis = g.axes[a];
  const bool wgrad = p.wanted == Role::w;
  // Every phase meets rows of x: it is longer than stride times dilation.
  if (axis.stride < (wgrad ? 8 : 4) || (axis.x - 1) / axis.stride < axis.dilation || p.slices > 1)
    return {};
  if (p.wanted == Role::x) return results_fill_stage(p, axis) ? std::optional(a) : std::nullopt;
  const double met = product({depth.k, a == 0 ? rows.x : rows.k, row.x, g.x_channels});
  const bool many_weights = g.taps() * g.x_channels * g.y_channels >= kManyWeights;
  const bool suits = wgrad ? met >= 96 << 10 || (many_weights && row.k >= kTaps)
                           : met >= 128 << 10 && g.taps() / axis.k >= kTaps;
  return suits && 2 * axis.k >= 3 * axis.stride ? std::optional(a) : std::nullopt;
}

// Whether weights should be read where they lie: packing them takes longer than few pixels'
// products. Time of the other plans over that of these, 100 random layers of 32 to 2048 channels,
// one window to windows of 4x4, two layouts, two threads of Zen 5; float32 with 16 lanes, with 8,
// float16 with 16, with 8:
// - one pixel 1.1 to 4.3, 1.1 to 4.5, 0.85 to 7.7, 1.15 to 8.2; up to 48 where its window misses
//   taps that lie apart, which are not read;
// - two 0.9 to 147, 1.1 to 92, 1.0 to 16, 0.73 to 15;
// - four 1.05 to 13, 1.1 to 7.5, 0.95 to 3.6, 1.1 to 3.0;
// - eight, from 64 K weights on, 0.77 to 5.9, 0.9 to 4.9, 0.7 to 3.3, 0.8 to 3.6, 1.2 to 2.5 in the
//   mean; of fewer weights 0.84 to 1.3, 0.98 in the mean;
// - 16, from 512 K on, taps that are neighbours 0.77 to 2.2, 1.5 in the mean, with 8 lanes 0.76 to
//   1.0; float16 1.1 to 4.2, 1.1 to 1.5; other taps and fewer weights 0.6 to 1.4;
// - 32 0.4 to 1.6, 0.9 in the mean.
// dgrad computes what each window has for every tap, while the others give every pixel of x all
// taps, which most of its edges miss: 9 to 64 windows without padding, at least three times as many
// channels to sum over, so that adding up is little, 41 layers (Zen 4, in the same order) 0.84 to
// 3.4, 0.95 to 3.2, 0.98 to 4.4 and once 0.78, 0.95 to 2.0, in the mean 1.3, 1.3, 1.45, 1.3; of
// fewer channels 0.4 to 1.3. Pairs of bfloat16 0.5 to 1.5.
// Where the others multiply pairs of bfloat16: one 0.9 to 5.2, two 0.9 to 10, four 0.8 to 1.6,
// eight 0.6 to 1.7, from 1 M weights on 0.8 to 2.4, 1.3 in the mean, 16 0.4 to 1.0.
bool few_pixels(const Problem& p, int64_t lanes, bool pairs) {
  constexpr int64_t kMostUnits = 1 << 20;  // of working memory
  const Geometry& g = p.geometry;
  const auto& [depth, rows, row] = g.axes;
  const double pixels = product({g.batch, depth.y, rows.y, row.y});
  const double weights = product({g.taps(), g.x_channels, g.y_channels});
  // Windows, and sums of up to 512 products.
  const double units = pixels * static_cast<double>(g.taps()) *
                       std::max(product({g.x_channels, ceil_div(g.y_channels, 512)}),
                                product({g.y_channels, ceil_div(g.x_channels, 512)}));
  constexpr double kMany = 64 << 10, kMore = 8 * kMany, kMost = 16 * kMany;
  const bool halves = p.dtype == Dtype::bf16 || p.dtype == Dtype::f16;
  const bool neighbours = g.taps() > 1 && p.w.x_channel == g.taps();
  int64_t most = weights < kMany ? 4 : 8;
  if (weights >= kMore && (halves || (neighbours && lanes > 8))) most = 16;
  if (pairs) most = weights < kMost ? 2 : 8;
  if (!pairs && p.wanted == Role::x && spread(g) >= 2 &&
      static_cast<double>(g.y_channels) >= 3 * pixels)
    most = 64;
  return pixels <= static_cast<double>(most) && units <= kMostUnits &&
         simd::may_leave_weights(p, lanes);
}

std::unique_ptr<const Plan> plan(const Problem& p, const simd::Kernels& kernels,
                                 const simd::InPlaceKernels& in_place_kernels) {
  const Geometry& g = p.geometry;
  const simd::Arithmetic& plain = p.dtype == Dtype::f64 ? *kernels.f64 : *kernels.f32;
  const bool pairs = p.dtype == Dtype::bf16 && kernels.bf16_pairs != nullptr;
  const bool half_lanes = kernels.f32_of_half_lanes && fills_half_vectors(p, plain.lanes);
  const simd::Arithmetic& chosen = pairs        ? *kernels.bf16_pairs
                                   : half_lanes ? *kernels.f32_of_half_lanes
                                                : plain;
  if (few_pixels(p, plain.lanes, pairs)) return simd::few_pixels_plan(p, plain, in_place_kernels);
  if (dot_products(p, plain.lanes)) return simd::dot_products_plan(p, plain, in_place_kernels);
  if (const std::optional<simd::Lanes> lanes = in_place(p, plain.lanes, chosen.pairs))
    return p.wanted == Role::w ? simd::in_place_weights_plan(p, plain, in_place_kernels, *lanes)
                               : simd::in_place_data_plan(p, plain, in_place_kernels, *lanes);
  if (planes(p, plain.lanes)) {
    if (p.wanted != Role::w) return simd::plane_data_plan(p, plain);
    return g.axes.back().stride > 2 ? simd::window_weights_plan(p, plain)
                                    : simd::plane_weights_plan(p, plain);
  }
  const bool slides = p.wanted != Role::w && slid_pixels(p, chosen.lanes, chosen.pairs);
  if (few_channels_a_group(p, plain.lanes) || (!pairs && groups_fill_vectors(p, plain.lanes))) {
    if (slides) return simd::slid_pixels_plan(p, chosen);
    return p.wanted == Role::w
               ? simd::grouped_weights_plan(p, plain, pairs ? kernels.bf16_pairs : nullptr)
               : simd::grouped_data_plan(p, plain, pairs ? kernels.bf16_pairs : nullptr);
  }
  if (chosen.winograd && suits_winograd(p, plain.lanes))
    return p.wanted == Role::w ? simd::winograd_weights_plan(p, chosen)
                               : simd::winograd_plan(p, chosen);
  const std::optional<int> phased = phased_axis(p);
  if (p.wanted == Role::w) {
    // Pairs are of windows of the last axis: of one, with zeros, 1.1 to 1.9 times as long (3x3x3
    // with stride 3, 3x3 and 2x2; Zen 4).
    const simd::Arithmetic& arithmetic = g.axes.back().y > 1 ? chosen : plain;
    return phased ? simd::phased_plan(p, arithmetic, *phased) : simd::weights_plan(p, arithmetic);
  }
  if (slides) return simd::slid_pixels_plan(p, chosen);
  if (row_phases(p, chosen.lanes)) return simd::row_phases_plan(p, chosen);
  if (!pairs && tap_lanes(p, chosen.lanes)) return simd::tap_lanes_plan(p, chosen);
  if (few_channels(p, chosen.lanes)) return simd::few_channels_plan(p, chosen);
  if (pointwise_pixels(p, chosen.lanes)) return simd::pointwise_plan(p, chosen);
  if (!simd::may_read_in_place(p, chosen) && dilated_rows(p)) {
    if (std::unique_ptr<const Plan> copying = simd::copying_data_plan(p, chosen)) return copying;
    return simd::dilated_rows_plan(p, chosen);
  }
  return phased && p.wanted == Role::x ? simd::phased_plan(p, chosen, *phased)
                                       : simd::data_plan(p, chosen, phased);
}

Prepared prepare(const Problem& original, std::string_view target) {
  simd::Simplified simplified = simd::simplify(original);
  Problem& problem = simplified.problem;
  if (flops(problem) < kSerialFlops) problem.threads = 1;
  return {simd::plan_of(simplified, plan(problem, kernels_of(target), in_place_kernels_of(target))),
          {}};
}

}  // namespace

const Backend kSimdBackend{
    .name = "simd",
    .targets =
        {
#if defined(__x86_64__)
            {"avx512", has_avx512},
            {"avx2", has_avx2},
#endif
            {"generic", always},
            // The avx512 tile's shape, and its arithmetic on pairs, in portable code: for tests on
            // any machine. Never the best choice.
            {"generic512", always},
        },
    .why_unsupported = [] { return std::string(); },
    .prepare = prepare,
};

}  // namespace convtbw
