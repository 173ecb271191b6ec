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

// Lanes of all blocks.
inline int64_t padded_lanes(const std::vector<LaneBlock>& blocks, int lanes) {
  return blocks.back().lane + int64_t{blocks.back().vectors} * lanes;
}

// A bias of so many channels a group as sums: [group][lane], padded to so many lanes.
inline void pack_bias(const Arithmetic& arithmetic, Dtype dtype, const void* bias, int64_t groups,
                      int64_t channels, int64_t lanes, char* to) {
  arithmetic.widen[static_cast<int>(dtype)](
      {bias, channels, 1, to, lanes, 1, groups, channels, lanes - channels});
}

// A range of the blocks of one group.
struct BlockRange {
  int64_t group, first_block, blocks, lane, lanes;  // lanes: padded to whole blocks
};

// The blocks of all groups in ranges of up to so many.
inline std::vector<BlockRange> block_ranges(const std::vector<LaneBlock>& blocks, int lanes,
                                            int64_t groups, int64_t most_blocks) {
  std::vector<BlockRange> ranges;
  const auto all = static_cast<int64_t>(blocks.size());
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t first = 0; first < all; first += most_blocks) {
      const int64_t count = std::min(most_blocks, all - first);
      const LaneBlock& last = blocks[first + count - 1];
      const int64_t end = last.lane + int64_t{last.vectors} * lanes;
      ranges.push_back({group, first, count, blocks[first].lane, end - blocks[first].lane});
    }
  return ranges;
}

}  // namespace convtbw::simd
