#include "core/half_vectors.h"

#include <algorithm>
#include <utility>

namespace convtbw {

// Time of whole vectors over that of halves, fprop and dgrad, 45 random layers, two layouts,
// AVX-512's and AVX2's kernels (Zen 4): 20 to 24 and 36 to 40 channels 1.0 to 1.7, 1.17 in the mean
// (2-D with a dilation 0.8 to 1.7, one tap, channels first, 0.95); 52 and 56 0.88 to 1.33, 1.04 in
// the mean, 72 0.9 to 1.08; 8 channels whose pixels fill up to 0.7 of whole vectors 1.65 to 3, more
// of them 0.87 to 1.2, channels last from up to 8 channels 1.09 to 12; 4 and 6 0.88 to 1.5. Weights
// gradients 0.6 to 1.4, 0.93 in the mean.
bool fills_half_vectors(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  if (p.wanted == Role::w || g.groups > 1 || p.dtype == Dtype::f64) return false;
  if (std::ranges::all_of(g.axes, pointwise) && p.x.channel != 1) return false;
  const auto [channels, others] = p.wanted == Role::y ? std::pair{g.y_channels, g.x_channels}
                                                      : std::pair{g.x_channels, g.y_channels};
  const DataStrides& result = p.wanted == Role::y ? p.y : p.x;
  const Axis& last = g.axes.back();
  const int64_t row = p.wanted == Role::y ? last.x : last.y;
  if (channels > lanes / 4 && channels <= lanes / 2) {
    const bool few = others <= lanes / 2 && channels > 3 * lanes / 8 && result.channel == 1;
    return few || 10 * last.y <= 7 * lanes * ceil_div(row, lanes);
  }
  return channels > lanes && channels <= 5 * lanes / 2 && (channels - 1) % lanes < lanes / 2;
}

// Time of whole vectors over that of halves, depthwise and groups of 2, 8 to 14 channels in all,
// channels last, three contractions, float32 and bfloat16 (two threads of Zen 4, 13 layers): 1.2 to
// 6, 2.3 in the mean; those of other CPUs multiply no lane more than these either.
bool groups_fill_half_vectors(const Problem& p, int64_t lanes) {
  const Geometry& g = p.geometry;
  int64_t channels = g.groups;
  if (p.wanted == Role::w)
    channels *= std::max(g.x_channels, g.y_channels);
  else
    channels *= p.wanted == Role::y ? g.y_channels : g.x_channels;
  return g.groups > 1 && channels >= lanes / 2 && channels < lanes && p.dtype != Dtype::f64;
}

}  // namespace convtbw
