// In which order the boxes of several parts are computed, and how threads share packing their
// weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "core/stream.h"

namespace convtbw::simd {

// Whether cache lines and pages hold channels of several groups.
inline bool groups_share_lines(const Problem& problem) {
  return problem.geometry.groups > 1 && (problem.x.channel == 1 || problem.y.channel == 1);
}

// All boxes of a part, whose weights are then in the cache; or, where groups share lines, all parts
// of a box, whose lines are: fprop and dgrad of 2 to 32 groups take 0.93 of the time with 8 lanes,
// from 0.82, and 0.98 with 16 (Ice Lake).
struct WorkOrder {
  int64_t parts, boxes;
  bool boxes_first;  // from box to box only after its last part

  struct Item {
    int64_t part, box;
  };
  int64_t items() const { return parts * boxes; }
  Item item(int64_t index) const {
    return boxes_first ? Item{index % parts, index / parts} : Item{index / boxes, index % boxes};
  }
  // Whether threads gain by packing a part's weights past the caches: it is not the thread that
  // computes all boxes of a part that packs it, as parallel_for() deals both.
  bool shares_parts(int threads) const {
    return gains_by_streams(threads) && (boxes_first || parts % threads != 0);
  }
  // The last one after itself.
  Item item_after(int64_t index) const { return item(std::min(index + 1, items() - 1)); }
};

// Packing is cut by channels as well, where there are few matrices of weights: into so many pieces
// of each.
inline constexpr int64_t kPackedChannels = 16;  // a cache line of those that are neighbours
inline int64_t packed_pieces(int64_t matrices, int64_t channels) {
  constexpr int64_t kPacks = 16;
  return std::max<int64_t>(
      1, std::min(ceil_div(kPacks, matrices), ceil_div(channels, kPackedChannels)));
}
inline Range packed_piece(int64_t piece, int64_t pieces, int64_t channels) {
  const int64_t size = ceil_div(ceil_div(channels, pieces), kPackedChannels) * kPackedChannels;
  const int64_t begin = std::min(piece * size, channels);
  return {begin, std::min(begin + size, channels)};
}

}  // namespace convtbw::simd
