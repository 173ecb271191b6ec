#include <algorithm>
#include <numeric>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/rules/rules.h"
#include "core/group_vectors.h"

namespace convtbw::simd {

namespace {

bool dilated(const Geometry& g) {
  return std::ranges::any_of(g.axes,
                             [](const Axis& axis) { return axis.k > 1 && axis.dilation > 1; });
}

// Whether sums of pixels in lanes, over the channels and rows of taps, are so short that shifting
// them takes longer than the lanes that fewer channels leave empty. Time of pixels in lanes over
// that of channels, channels last, float32 and bfloat16, two threads of Zen 4, 45 layers:
// - taps of one row, into 4 and more from up to as many channels, 16 lanes 1.07 to 18, 3.0 in the
//   mean, 8 lanes 1.03 to 4; from more 0.6 to 0.95; into 2 from 1 1.0 to 1.2, others 0.3 to 0.75;
// - of several rows, 16 lanes, into 8 and 10, sums of up to 9 0.87 to 1.8, 1.2 in the mean; of more
//   0.93 and 1.04; into 6 0.96 to 1.26, into 3 and 4 0.47 to 1.02;
// - dgrad with strides, whose phases have fewer taps, 0.6 to 1.5, 0.9 in the mean.
bool sums_are_short(const Geometry& g, int64_t from, int64_t into, int64_t lanes) {
  const int64_t row_taps = g.axes.back().k, rows = g.taps() / row_taps;
  if (row_taps == 1 || g.axes.back().stride > 1) return false;
  if (rows == 1) return into >= 3 && from <= into;
  constexpr int64_t kShortSum = 9;
  return lanes > 8 && into >= 8 && from * rows <= kShortSum;
}

}  // namespace

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

// Of these groups, fprop and dgrad, channels last, those that are better computed one after the
// other all the same: channels that are spread in memory, in many planes, leave the first-level
// cache. Time of one after the other over that of all groups, by how many times as many products
// they take, 105 random layers in 2-D of 5 to 11 channels, 2 to 48 groups, two threads of Zen 4:
// - 16 lanes, up to 1.4 times 0.41 to 1.08, 0.8 in the mean, 5x5 and larger 1.5 times, too; more
//   0.77 to 3;
// - pairs, up to 1.6 times 0.26 to 1.2, 0.75 in the mean, 5x5 and larger up to 2.7 times 0.54 to
//   1.03; more 0.7 to 3;
// - 8 lanes, up to 1.2 times, 5x5 and larger 0.6 to 0.91, once 1.07; 3x3 0.8 to 2;
// - fprop with strides of 6 and more 0.26 to 0.99, of 5 0.85 to 1.6; dgrad with strides 0.55 to 4,
//   one tap 0.85 to 2.4.
bool groups_one_by_one(const Problem& p, int64_t lanes, bool pairs) {
  constexpr int64_t kLeastChannels = 5, kSomeTaps = 9, kManyTaps = 25;
  const Geometry& g = p.geometry;
  const bool fprop = p.wanted == Role::y;
  const int64_t few = std::min(g.x_channels, g.y_channels), taps = g.taps();
  if (p.wanted == Role::w || few < kLeastChannels || p.x.channel != 1 || p.y.channel != 1 ||
      dilated(g) || groups_share_vectors(p, lanes))
    return false;
  if (!unit_strides(g)) return fprop && few > kLeastChannels;
  const int64_t into = fprop ? g.y_channels : g.x_channels;
  const double products = static_cast<double>(g.groups * ceil_div(into, lanes)) /
                          static_cast<double>(ceil_div(g.groups * into, lanes));
  if (lanes == 8) return taps >= kManyTaps && products <= 1.2;
  if (taps >= kManyTaps) return products <= (pairs ? 2.7 : 1.5);
  return taps >= kSomeTaps && products <= (pairs ? 1.6 : 1.45);
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
  if (sums_are_short(g, others, channels, lanes)) return false;
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

// Whether lanes should be pixels of a row, and windows slide over rows that are copied channel by
// channel: nothing is transposed, and results of any number of channels fill tiles. Time over that
// of channels in lanes, fprop and dgrad, 1-D to 3-D, two threads of Zen 4, 1500 random layers of 1
// to 128 channels into 8 to 128: with `steps` (channels, or pairs, times taps) and what part of
// their vectors channels and pixels fill, within 10 % in the mean
//   1.05 (8 lanes 1.15) * filled(channels) / filled(pixels) / (1 + 10 / steps),
// 0.7 in the mean of those chosen, 0.25 at best (1 to 3 channels of rows of 1000 and more), of 3 %
// more than 1.05, at most 1.35. Of many channels few rows fit: with 8 lanes from 96 on 1.0 to 1.2.
// With strides of 3 to 20 whose pixels are dealt first, 230 layers of 1 to 32 channels into 16 to
// 512, the same and 0.3 for each pixel that is dealt for a vector of products: of those chosen 16
// lanes 0.82 in the mean (1-D from few channels 0.5), pairs 0.84, 8 lanes 0.78; groups of few
// channels 0.2 to 1.08; into 3 to 12, of up to 1600 steps, 0.43 to 1.01, of 3200 to 10 K 1.0
// to 1.5. Over that of pixels in lanes whose sums are shifted (few_channels), 16 lanes: from up to
// 32 channels into 4 to 11 0.55 to 1.05, 0.8 in the mean; into 1 to 3 1.0 to 1.6; into 20 and 24
// from 192 and more 0.9 to 1.0; 8 lanes: into 3 to 7 0.5 to 1.05, into 1 and 2 1.0 to 1.5. Over
// that of grouped_data_plan, 340 layers of 2 to 64 groups of few channels: 16 lanes, into 4 and
// more 0.23 to 1.0, 0.55 in the mean, into 2 and 3 0.65 to 1.4; pairs into 2 and more 0.13 to 0.75,
// 0.35 in the mean; 8 lanes, into 3 and more 0.36 to 0.9; rows of 4 to 8 pixels up to 2. But groups
// that are spread in registers (two threads of Zen 5, 2x2 to 7x7): of 4 and 8, rows of fewer than
// 32 results, 16 lanes 1.02 to 3.1, 8 lanes 1.0 to 2.5, of 32 and more 0.72 to 1.05, strides of
// fprop 0.74 to 1.25; pairs, of 2 1.4 to 3.7 (3x3 of 64 0.9), of 4 below 64 results 1.1 to 2.8, of
// 8 below 32 1.2 to 1.9, of more 0.75 to 1.1.
bool slid_pixels(const Problem& p, int64_t lanes, bool pairs) {
  // What a vector of windows meets is a small part of a box: of 192 channels of 5x5x5 positions it
  // was all of it, and took 2.3 times as long.
  constexpr int64_t kMostUnits = 32 << 10, kMostDealtSteps = 2048;
  const Geometry& g = p.geometry;
  const bool fprop = p.wanted == Role::y;
  const Axis& row = g.axes.back();
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1 || p.x.channel == 1 || p.y.channel == 1)
    return false;
  for (const Axis& axis : g.axes)
    if (axis.k < axis.stride || (!fprop && axis.stride > 1)) return false;
  if (g.taps() == 1) return false;
  const auto [from, into] =
      fprop ? std::pair{g.x_channels, g.y_channels} : std::pair{g.y_channels, g.x_channels};
  if (from > (lanes > 8 ? 256 : 64)) return false;
  const int64_t units = pairs ? (from + 1) / 2 : from;
  if (row.stride > 2 && units * g.taps() > kMostDealtSteps) return false;
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
  double dealt = 0;  // pixels, over vectors of products
  if (row.stride > 2)
    dealt = static_cast<double>(g.axes[0].stride * g.axes[1].stride * row.stride * lanes) /
            static_cast<double>(into * g.taps());
  return (lanes > 8 ? 1.05 : 1.15) * filled(into) * half_empty * (1 + 0.3 * dealt) <
         row_filled * (1 + 10 / static_cast<double>(units * g.taps()));
}

// Whether the same should be done phase by phase of dgrad with strides. Time over that of channels
// in lanes, 150 random layers of 1 to 256 channels into 1 to 256, 1-D to 3-D, strides of 2 to 8,
// two threads of Zen 4, 16 and 8 lanes, pairs: with what part of their vectors channels and windows
// fill, from 12 windows a row on, within 15 % of
//   (0.85 + channels / 400, up to 1.25) * filled(channels) / filled(windows),
// 0.8 in the mean of those chosen; rows alone with a stride alike. Over that of few_channels, into
// 4 and more from up to 32, 8 and more from up to 64: 0.3 to 1.06, 0.7 in the mean; into 1 to 3 0.8
// to 4.8. Over that of grouped_data_plan, of `groups` channels in lanes, within 40 % of 1.2 *
// filled(groups) / filled(windows). Winograd takes 0.5 to 0.8 of it.
bool slid_phases(const Problem& p, int64_t lanes, bool pairs) {
  constexpr int64_t kMostUnits = 32 << 10, kLeastWindows = 12;
  const Geometry& g = p.geometry;
  const Axis& row = g.axes.back();
  const int64_t from = g.y_channels, into = g.x_channels, windows = ceil_div(row.x, row.stride);
  if (p.wanted != Role::x || row.stride > kMaxTurnParts || !has_strides(g)) return false;
  if (p.x.axes.back() != 1 || p.y.axes.back() != 1 || p.x.channel == 1 || p.y.channel == 1)
    return false;
  if (windows < kLeastWindows || (from == 1 && into == 1)) return false;
  int64_t held = pairs ? (from + 1) / 2 : from;
  for (const Axis& axis : g.axes) {
    if (axis.k < axis.stride || axis.dilation > 1) return false;
    const int64_t extent = ceil_div(axis.k, axis.stride) + 1 + (&axis == &row ? lanes : 0);
    if (extent > kMostUnits / held) return false;
    held *= extent;
  }
  const auto filled = [lanes](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(ceil_div(count, lanes) * lanes);
  };
  const double row_filled = filled(windows);
  if (few_channels_a_group(p, lanes)) return 1.2 * filled(g.groups * into) < row_filled;
  if (few_channels(p, lanes) && into < (lanes > 8 ? 12 : 8))
    return row_filled > 0.6 && ((into >= 4 && from <= 32) || (into >= 8 && from <= 64));
  const double slower = std::min(1.25, 0.85 + static_cast<double>(from) / 400);
  return slower * filled(into) < 0.95 * row_filled;
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

// Whether all taps of the few channels of the result should be rows of tiles, whose lanes are
// pixels of the operand (tap_rows_plan). Time over that of few_channels_plan, 1-D to 3-D, stride 1
// and transposed, from 8 to 512 channels into 1 to 4, two threads of Zen 4, 110 random layers, by
// rows over channels that are summed over:
// - float32, 16 lanes, channels first (read in place), up to a half 0.14 to 1.1, 0.6 in the mean,
//   up to 1.1 0.9, more 1.2;
// - pairs, channels first, up to a third 0.25 to 1.15, 0.75, to a half 0.95; float32 and float16, 8
//   lanes, 0.21 to 1.17, 0.7, and 0.92;
// - channels last, where tap_lanes_plan does not serve, up to a fifth 0.26 to 1.2, 0.85 in the
//   mean, to a third 0.95, more 1.05 to 1.3.
bool tap_rows(const Problem& p, int64_t lanes, bool pairs) {
  constexpr double kMostSums = 256 << 10;  // of rows and planes that results share
  constexpr int64_t kShortRow = 256;       // of those that are cut
  const Geometry& g = p.geometry;
  const bool fprop = p.wanted == Role::y;
  if (!few_channels(p, lanes) || g.taps() == 1 || (fprop && !unit_strides(g))) return false;
  const auto [from, into] =
      fprop ? std::pair(g.x_channels, g.y_channels) : std::pair(g.y_channels, g.x_channels);
  const DataStrides& in = fprop ? p.x : p.y;
  const auto extent = [&](int a) { return fprop ? g.axes[a].x : g.axes[a].y; };
  // Rows follow each other, every result has a tap, and every window of fprop might meet x.
  if (extent(1) > 1 && in.axes[1] != extent(2) * in.axes[2]) return false;
  double met = static_cast<double>(g.taps() * into);
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = g.axes[a];
    if (std::gcd(axis.stride, axis.dilation) > 1 || axis.k < axis.stride) return false;
    if (fprop && axis.pad > (axis.k - 1) * axis.dilation) return false;
    const int64_t shared = ceil_div(effective_kernel(axis.k, axis.dilation), axis.stride);
    const int64_t held = a == 0          ? shared
                         : a == 1        ? std::min(5 * shared, extent(1))
                         : extent(1) > 1 ? extent(2) + shared
                                         : std::min(kShortRow, extent(2)) + shared;
    met *= static_cast<double>(held);
  }
  const bool planes = in.axes[2] == 1;
  const int64_t part = !planes ? 5 : lanes > 8 && p.dtype == Dtype::f32 && !pairs ? 2 : 3;
  return part * g.taps() * into <= from && met <= kMostSums;
}

// Whether a weights gradient should be that of the problem with x and y exchanged
// (mirrored_weights_plan), whose windows are the pixels of x. Time mirrored over that of x's
// channels in lanes, 1-D to 3-D, 8 to 512 channels of x, float32 with 8 and 16 lanes and pairs, two
// threads of Zen 4, 120 random layers:
// - 1 to 3 channels of y, as many windows 0.20 to 1.0, 0.6 in the mean; 1.4 times as many 0.75 to
//   1.05, 3 times 0.91 to 1.5;
// - 4 to 11, from 2048 pixels on, 8 lanes 0.72 to 1.05, 0.84 in the mean; 16 0.67 to 1.07, 0.95;
//   pairs 0.32 to 1.04, 0.85; fewer pixels, 1.1 times as many windows, or channels of x that leave
//   lanes empty, which taps then join, 0.8 to 3;
// - 12 to 32 0.86 to 1.4, 1.0 in the mean;
// - taps of a row that do not join, because of a dilation, 0.9 to 1.0.
bool mirrors(const Problem& p, int64_t lanes) {
  constexpr int64_t kFewChannels = 3, kMostChannels = 11, kManyPixels = 2048, kMostRows = 256;
  const Geometry& g = p.geometry;
  const Axis& row = g.axes.back();
  if (adds(p.epilogue) || !unit_strides(g)) return false;
  if (row.k == 1 || row.dilation > 1 || g.y_channels >= g.x_channels) return false;
  double windows = 1;  // over those of now
  for (const Axis& axis : g.axes) {
    if (axis.pad > (axis.k - 1) * axis.dilation) return false;
    windows *= static_cast<double>(axis.x) / static_cast<double>(axis.y);
  }
  if (g.y_channels <= kFewChannels) return windows <= 1.4;
  const int64_t whole = ceil_div(g.x_channels, lanes) * lanes;
  return g.y_channels <= kMostChannels && g.y_channels * row.k <= kMostRows &&
         pixels_of_y(g) >= kManyPixels && windows <= 1.1 && 10 * g.x_channels >= 9 * whole;
}

}  // namespace convtbw::simd
