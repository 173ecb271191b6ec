// bfloat16 on CPUs with matrix registers (AMX), which oneDNN and simd both use. Two threads of an
// Intel Xeon of 2 MB of second-level cache a core, random layers of 1-D to 3-D: 380 dense ones, 280
// of 2 to 32 groups of 2 to 64 channels, 50 depthwise. What is chosen takes longer than the better
// of both backends by so many per cent in the mean, by these rules (simd alone):
//                                fprop      dgrad      wgrad
//   dense, channels last
//     stride 1                   3 (28)     3 (27)     2 (3)
//     strides                    8 (9)      5 (9)      2 (3)
//   dense, channels first        2 (5)      5          1
//   groups, channels last        4 (39)     6 (25)     3 (6)
//   groups, channels first       3          2          1
//   depthwise                    1          1          0
#include <algorithm>

#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

namespace {

// Phases of dgrad that have as many results each. Else oneDNN has no kernel for matrix registers:
// simd takes 0.3 to 1.1 times as long, 0.6 in the mean.
bool phases_alike(const Geometry& g) {
  return std::ranges::all_of(g.axes, [](const Axis& axis) { return axis.x % axis.stride == 0; });
}

bool suits_dense_fprop(const Problem& p) {
  constexpr int64_t kManyPixels = 650, kVeryLongRow = 2500;
  constexpr int64_t kInto = 36, kLongRow = 26, kSomeFlops = 72'000'000;
  constexpr int64_t kShortRow = 15, kPixelsOfShortRows = 980;
  const Geometry& g = p.geometry;
  const int64_t row = g.axes[2].y, pixels = pixels_of_y(g);
  if (!has_channels_last(p)) return row <= kShortRow && pixels > kPixelsOfShortRows;
  if (unit_strides(g))
    return std::min(g.x_channels, g.y_channels) > 3 && pixels > kManyPixels && row < kVeryLongRow;
  return g.y_channels <= kInto && row > kLongRow && flops(p) > kSomeFlops;
}

bool suits_dense_dgrad(const Problem& p) {
  constexpr int64_t kManyPixels = 650, kVeryManyPixels = 80'000;
  constexpr int64_t kLongRow = 40, kSomePixels = 520;
  const Geometry& g = p.geometry;
  if (!has_channels_last(p)) return false;
  const int64_t pixels = pixels_of_x(g);
  if (unit_strides(g))
    return pixels > kManyPixels &&
           (std::min(g.x_channels, g.y_channels) > 5 || pixels > kVeryManyPixels);
  return phases_alike(g) && g.axes[2].x > kLongRow && pixels_of_y(g) > kSomePixels;
}

// Of few images and many products.
bool suits_dense_wgrad(const Problem& p) {
  constexpr int64_t kManyFlops = 830'000'000, kFewImages = 12;
  const Geometry& g = p.geometry;
  return has_channels_last(p) && unit_strides(g) && g.batch <= kFewImages && flops(p) > kManyFlops;
}

bool suits_grouped_fprop(const Geometry& g, int64_t more) {
  constexpr int64_t kFewChannels = 14, kManyPixels = 892, kSomeSteps = 150, kManySteps = 336;
  if (more <= kFewChannels) return more > 5 && g.y_channels <= 7;
  const int64_t steps = g.x_channels * g.taps();
  return pixels_of_y(g) > kManyPixels || (steps > kSomeSteps && steps <= kManySteps);
}

bool suits_grouped_dgrad(const Problem& p, int64_t more) {
  constexpr int64_t kFewChannels = 14, kSomePixels = 272, kFewWeights = 6200;
  constexpr double kMuchData = 1536 << 10;
  const Geometry& g = p.geometry;
  if (!phases_alike(g)) return false;
  if (more > kFewChannels) return pixels_of_y(g) > kSomePixels;
  return g.x_channels > 5 && data_bytes_of_both(p) > kMuchData &&
         g.groups * g.x_channels * g.y_channels * g.taps() <= kFewWeights;
}

// Of several images.
bool suits_grouped_wgrad(const Problem& p) {
  constexpr int64_t kSeveral = 6, kManyPixels = 4048, kManyFlops = 575'000'000;
  const Geometry& g = p.geometry;
  return std::min(g.x_channels, g.y_channels) > 5 && g.batch > kSeveral &&
         pixels_of_x(g) > kManyPixels && flops(p) <= kManyFlops;
}

bool suits_groups(const Problem& p) {
  const Geometry& g = p.geometry;
  const int64_t more = std::max(g.x_channels, g.y_channels);
  if (!has_channels_last(p) || more == 1) return false;
  if (p.wanted == Role::w) return suits_grouped_wgrad(p);
  return p.wanted == Role::y ? suits_grouped_fprop(g, more) : suits_grouped_dgrad(p, more);
}

}  // namespace

bool suits_matrix_kernels(const Problem& p) {
  if (p.geometry.groups > 1) return suits_groups(p);
  if (p.wanted == Role::w) return suits_dense_wgrad(p);
  return p.wanted == Role::y ? suits_dense_fprop(p) : suits_dense_dgrad(p);
}

}  // namespace convtbw
