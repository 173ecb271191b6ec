#include <algorithm>
#include <utility>

#include "backends/simd/rules/rules.h"

namespace convtbw::simd {

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
std::optional<Lanes> in_place(const Problem& p, int64_t lanes, bool pairs) {
  const Geometry& g = p.geometry;
  if (!std::ranges::all_of(g.axes, pointwise) || g.axes[0].x > 1 || g.axes[1].x > 1) return {};
  const bool wgrad = p.wanted == Role::w;
  const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
  if (p.x.axes.back() == 1 && p.y.axes.back() == 1 && g.axes.back().x >= lanes) {
    const int64_t most = pairs ? 4 : 8;
    const bool suits = wgrad ? few <= 16 && few * more <= (few <= 8 ? 2048 : 1024)
                             : few <= most || more <= 2 * most;
    return suits ? std::optional(Lanes::pixels) : std::nullopt;
  }
  const bool lanes_of_y = wgrad ? g.y_channels >= g.x_channels : p.wanted == Role::y;
  const auto [channels, others] =
      lanes_of_y ? std::pair(g.y_channels, g.x_channels) : std::pair(g.x_channels, g.y_channels);
  const bool neighbours = (lanes_of_y ? p.y : p.x).channel == 1 && channels >= lanes;
  const bool suits = others <= (pairs ? 12 : 24) && (!wgrad || few * more <= 4096);
  return neighbours && suits ? std::optional(Lanes::channels) : std::nullopt;
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
      g.axes[1].x > 1 || g.axes[2].x < kDotPixels)
    return false;
  const bool fprop = p.wanted == Role::y;
  const auto [from, into] =
      fprop ? std::pair(g.x_channels, g.y_channels) : std::pair(g.y_channels, g.x_channels);
  return (fprop ? p.x : p.y).channel == 1 && into <= kMostChannels && from >= lanes &&
         from <= kMostVectors * lanes;
}

}  // namespace convtbw::simd
