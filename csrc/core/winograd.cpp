#include "core/winograd.h"

#include <algorithm>

namespace convtbw {

bool suits_winograd(const Problem& all, int64_t lanes) {
  const Problem p = one_slice(all);
  // Time of the direct method over that of tiles, 3x3, 8 lanes, Zen 5: of 49 tiles 1.0 with 16
  // channels, 1.08 to 1.25 with 32 to 512; of 196 1.07 with 16, 1.4 to 1.5; of 392 1.3 with 16, 1.6
  // to 1.7. 7x7 of 512 channels, where 1.4 times fewer products are left, 0.8 to 1.1.
  constexpr double kLeastGain = 1.5;
  constexpr int64_t kLeastChannels = 16;
  // The transform of weights takes the time of the products of so many tiles (16 with 8 lanes, 75
  // to 100 with 16): 4x4 of stride 2, 256 to 512 channels, 72 tiles, 1.56 times fewer products,
  // takes 0.9 to 1.1 (8 lanes) and 1.4 (16) times as long as the direct method.
  constexpr double kTilesOfWeights = 48, kLeastGainWithWeights = 1.2;
  // The direct method sums so few products of two taps more exactly: 4x4 of stride 2, 32 channels,
  // 1.4 times the error of a blocked gemm.
  constexpr int64_t kLeastChannelsOfTwoTaps = 64;
  constexpr int64_t kMostPhases = 4;  // each has weights of its own
  // In 3-D with strides of 4 there are so many for every plane of taps: fprop, wgrad, 16 to 48
  // channels, 7x7x7 and 8x8x8, the direct method takes 0.43 to 1.25 of the time; with strides of 3
  // 0.7 to 1.75, 1.15 in the mean (20 layers, Zen 4, 8 lanes alike).
  constexpr int64_t kMostPhasesOfPlanes = 9;
  // Tiles that are apart, and those of phases that are added, spread over more positions of the
  // operand: of many channels only few tiles are in the cache together. Time over that of the
  // direct method, fprop of 4x4 of stride 2 and 3x3 with dilations of 2 and 4 (Zen 4, 8 and 16
  // lanes): 64 channels, 4 in all, and 16 times 64, 0.65 to 1.0; 4 times 320 to 512, and 16 times
  // 128, 0.7 to 1.8; more 1.6 to 6. Dilation of 3: 0.8 to 0.9 with 8 lanes, 0.9 to 2.4 with 16.
  constexpr int64_t kMostChannelsApart = 1024, kSpoiledDilation = 3;
  // The same, 3x3, 22 random layers (Zen 5): with 16 lanes and a dilation of 2 up to 256 channels
  // of 1000 tiles and more 1.0 to 1.55, of 784 0.86 to 0.96 with 32, 1.1 to 1.15 with 64, fewer
  // tiles or more channels 0.62 to 0.93; of 4 0.58 to 1.08. With 8 lanes a dilation of 4 into 16
  // channels 0.65 to 0.95, into more 0.93 to 1.2.
  constexpr int64_t kManyTiles = 1000, kSomeTiles = 700, kSomeChannels = 64, kMostOf16Lanes = 256;
  constexpr int64_t kLeastInto = 32;
  // wgrad with dilations of 3 and 4, the same, 0.65 to 0.9, but of 256 channels of x and 64 of y
  // 0.9 to 1.75, and of up to 64 on a side over 1024 pixels 1.25 to 1.75.
  constexpr int64_t kFewPixels = 1024, kFewChannels = 64;
  const Geometry& g = p.geometry;
  if (p.dtype == Dtype::f64 || adds(p.epilogue)) return false;
  if (std::min(g.x_channels, g.y_channels) < kLeastChannels) return false;
  // Products of the direct method over those of tiles whose operand has four positions.
  double gain = 1;
  bool two_taps = false;
  int64_t summed = p.wanted == Role::y ? g.x_channels : g.y_channels;
  int64_t spread = summed;  // over the positions of so many
  int64_t most_apart = 1;
  int64_t tiles = g.batch * g.axes[0].y, all_phases = 1;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = g.axes[a];
    // Result positions that no tap meets belong to no tile.
    if (p.wanted == Role::x &&
        (axis.k < axis.stride || (axis.stride > 1 && axis.dilation > 1) || axis.x < axis.stride))
      return false;
    if (a == 0) continue;
    // Phases have taps of their own, the windows of a dilation are apart.
    const int64_t phases = axis.stride, apart = axis.dilation;
    if (phases > kMostPhases || apart > kMostPhases || (phases > 1 && apart > 1)) return false;
    if (p.wanted != Role::w && apart == kSpoiledDilation) return false;
    most_apart = std::max(most_apart, apart);
    all_phases *= phases;
    const int64_t taps = ceil_div(axis.k, phases), results = results_of_taps(taps);
    if (axis.k < phases || taps < 2 || taps > 3) return false;
    summed *= p.wanted == Role::y ? phases : 1;
    spread *= p.wanted == Role::y ? phases * apart : apart;
    two_taps |= taps == 2;
    const int64_t windows = p.wanted != Role::x ? axis.y
                                                : floor_div(axis.x - 1 + axis.pad, axis.stride) -
                                                      floor_div(axis.pad, axis.stride) + 1;
    const int64_t across = apart * ceil_div(ceil_div(windows, apart), results);
    gain *= static_cast<double>(present_taps(axis)) / static_cast<double>(4 * across * phases);
    tiles *= across;
  }
  if (p.wanted != Role::x && g.axes[0].k > 1 && all_phases > kMostPhasesOfPlanes) return false;
  if (p.wanted != Role::w && two_taps && summed < kLeastChannelsOfTwoTaps) return false;
  if (p.wanted != Role::w && spread > kMostChannelsApart) return false;
  if (p.wanted != Role::w && most_apart > 1) {
    const auto [few, more] = std::minmax({g.x_channels, g.y_channels});
    const int64_t into = p.wanted == Role::y ? g.y_channels : g.x_channels;
    if (lanes > 8 ? most_apart > 2 || more > kMostOf16Lanes ||
                        tiles < (few < kSomeChannels ? kManyTiles : kSomeTiles)
                  : most_apart > 2 && into < kLeastInto)
      return false;
  }
  if (p.wanted == Role::w && most_apart > 2 &&
      (g.x_channels > 2 * g.y_channels || (std::min(g.x_channels, g.y_channels) <= kFewChannels &&
                                           g.batch * g.axes[1].y * g.axes[2].y <= kFewPixels)))
    return false;
  const auto products = static_cast<double>(tiles);
  return gain >= kLeastGain &&
         gain * products / (products + kTilesOfWeights) >= kLeastGainWithWeights;
}

}  // namespace convtbw
