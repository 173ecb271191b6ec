#include <algorithm>
#include <utility>

#include "backends/simd/rules/rules.h"

namespace convtbw::simd {

namespace {

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

}  // namespace

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

}  // namespace convtbw::simd
