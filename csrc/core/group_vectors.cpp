#include "core/group_vectors.h"

#include <utility>

namespace convtbw {

// Time of the other plans over that of these, channels last, 2 to 32 groups, two threads of Zen 3,
// float32 and bfloat16:
// - fprop and dgrad (240 random layers), from 8 to 16 channels into 8, and from up to 6 into up to
//   64: rows of 28 results and more 0.8 to 7, 1.7 in the mean; shorter ones, up to 3x3, 1.0 to 1.8,
//   in 3-D or of more taps 0.5 to 1.2; one tap 0.75 to 1.2; from 24 into 8 0.2 to 2, into 16 from
//   as many 0.4 to 1.8, both 1.0 in the mean;
// - wgrad (130 random layers), up to 4x4: of 8 to 8, rows of 14 windows and more 1.0 to 1.9, fewer
//   0.75 to 1.15; of up to 6 to up to 32, rows of 28 and more 1.05 to 6, shorter ones and to 64
//   0.75 to 1.2; more taps 0.3 to 1.3;
// - 16 lanes (two threads of Zen 5, 40 layers), fprop and dgrad from 8 to 24 channels into 16: rows
//   of 28 and more 1.0 to 1.7, 1.35 in the mean (512 channels, stride 2, 0.8), of 14 0.65 to 0.85;
//   from 32 0.8; wgrad 0.6 to 1.15.
// Not with pairs of bfloat16.
bool groups_fill_vectors(const Problem& p, int64_t lanes) {
  constexpr int64_t kLongRow = 28, kRow = 14, kShortRow = 7, kFew = 6;
  const Geometry& g = p.geometry;
  const bool wgrad = p.wanted == Role::w;
  const auto [from, into] = p.wanted == Role::x ? std::pair(g.y_channels, g.x_channels)
                                                : std::pair(g.x_channels, g.y_channels);
  const int64_t row = g.axes.back().y, taps = g.taps();
  if (g.groups == 1 || into % lanes != 0 || into > (wgrad ? 32 : 64) || p.x.channel != 1 ||
      p.y.channel != 1 || taps == 1 || p.dtype == Dtype::f64)
    return false;
  int64_t most = kFew;  // channels that meet a vector of results
  if (lanes == 8) most = wgrad ? 8 : 16;
  if (lanes == 16 && !wgrad && row >= kLongRow) most = 24;
  if (from > kFew && (into != lanes || from > most)) return false;
  if (wgrad) return taps <= 16 && row >= (from == into ? kRow : kLongRow);
  return row >= kLongRow || (g.rank < 3 && taps <= 9 && row >= kShortRow);
}

bool groups_share_vectors(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  const int64_t group = g.x_channels;
  const bool fits = group == 2 || group == 4 || (group == 8 && lanes > 8);
  return fits && g.y_channels == group && p.dtype != Dtype::f64;
}

}  // namespace convtbw
