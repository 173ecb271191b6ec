// How channels are cut into tiles' lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"

namespace convtbw::simd {

// Channels [lane, lane + live) in so many vectors.
struct LaneBlock {
  int64_t lane, live;
  int vectors;
};

// Two vectors make the best tile; three at the end rather than one. Tiles of fewer than four rows
// need more vectors to keep the multipliers busy.
inline std::vector<LaneBlock> lane_blocks(int64_t channels, int lanes, bool few_rows) {
  std::vector<LaneBlock> blocks;
  int64_t left = (channels + lanes - 1) / lanes, lane = 0;
  while (left) {
    const int64_t vectors = few_rows    ? std::min<int64_t>(left, kMaxVectors)
                            : left == 1 ? 1
                            : left == 3 ? 3
                                        : 2;
    blocks.push_back({lane, std::min(vectors * lanes, channels - lane), static_cast<int>(vectors)});
    lane += vectors * lanes;
    left -= vectors;
  }
  return blocks;
}

}  // namespace convtbw::simd
