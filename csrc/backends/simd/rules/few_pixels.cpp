#include <algorithm>

#include "backends/simd/rules/rules.h"
#include "core/spread_windows.h"

namespace convtbw::simd {

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
  if (!pairs && windows_spread(p)) most = 64;
  return pixels <= static_cast<double>(most) && units <= kMostUnits && may_leave_weights(p, lanes);
}

}  // namespace convtbw::simd
