// Dense problems in float32 on Zen 3 and 4 with AVX2 that the other rules of dense problems would
// give to oneDNN, though simd's kernels are better by now. Times of simd over oneDNN, AVX2 kernels
// of both, two threads of Zen 4, of such layers among 880 random and well-known ones, means:
// - wgrad 0.75; but, channels last, from one channel into up to 56, rows of up to 127 windows, 1.3,
//   and of one tap, multiples of 32 channels, rows of 56 and more, 0.81 to 1.21, 1.06;
// - fprop and dgrad in 1-D 0.75, but one tap of stride 1 1.07; in 3-D 0.74; in 2-D rows of fewer
//   than 28 windows 0.87, longer ones with strides 0.96, of fprop with up to 8 channels on a side
//   1.1, without strides 1.1; channels first, of more channels, up to 1.6 (sequences of k16),
//   mostly 0.9 to 1.2.
#include <algorithm>

#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

bool suits_simd_of_avx2(const Problem& p) {
  constexpr int64_t kLongRow = 28, kRowOfOneTap = 56, kVeryLongRow = 128, kFewChannels = 8,
                    kManyResults = 56;
  const Geometry& g = p.geometry;
  const bool channels_last = has_channels_last(p), strides = !unit_strides(g);
  const bool few = std::min(g.x_channels, g.y_channels) <= kFewChannels;
  const int64_t row = g.axes.back().y;
  if (p.wanted == Role::w) {
    if (!channels_last) return true;
    if (one_tap(g) && !strides && row >= kRowOfOneTap)
      return g.x_channels % 32 != 0 || g.y_channels % 32 != 0;
    return g.x_channels > 1 || g.y_channels > kManyResults || row >= kVeryLongRow;
  }
  if (!channels_last && !few) return false;
  const bool image = g.rank == 2 || (g.rank == 1 && one_tap(g) && !strides);
  return !image || row < kLongRow || (strides && (p.wanted == Role::x || !few));
}

}  // namespace convtbw
