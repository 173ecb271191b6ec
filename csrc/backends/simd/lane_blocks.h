// How channels are cut into tiles' lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/simd/kernels.h"
#include "core/geometry.h"

namespace convtbw::simd {

// Channels [lane, lane + live) in so many vectors.
struct LaneBlock {
  int64_t lane, live;
  int vectors;
};

// Of tiles for so many rows. Two in 16 registers; but fewer than four rows need more to keep the
// multipliers busy. In 32 registers six rows of four take 10 loads for 24 products, ten rows of two
// 12 for 20: 1.15 times as fast where loads are the limit (Ice Lake). Rows that fill one tile of
// two read its operand once (Winograd's, 512 channels: 1.25 times as fast). Two where packed
// weights have no room for the lanes of more.
// Matrix registers hold 16 rows of four or 32 of two. The latter read half as many weights for
// their products, and write pieces of half the length: one tap of 64 to 256 channels 1.26 times as
// long, 128 steps 1.17 to 1.27, 256 0.88 to 0.96, 288 0.85 to 0.92 (AMX, steps of pairs).
inline int best_vectors(const Arithmetic& arithmetic, int64_t rows, int64_t room = INT64_MAX,
                        int64_t steps = 0) {
  constexpr int64_t kManySteps = 192;
  const int* const max_rows = arithmetic.tiles.max_rows;
  if (arithmetic.matrices) return rows <= 16 || steps < kManySteps ? kMaxVectors : 2;
  if (room < int64_t{kMaxVectors} * arithmetic.lanes) return 2;
  const bool many_registers = max_rows[kMaxVectors] >= 6;
  const bool one_tile = rows > max_rows[kMaxVectors] && rows <= max_rows[2];
  return rows < 4 || (many_registers && !one_tile) ? kMaxVectors : 2;
}

// Blocks of up to so many vectors, about as wide as each other; three at the end rather than one.
inline std::vector<LaneBlock> lane_blocks(int64_t channels, int lanes, int most_vectors) {
  std::vector<LaneBlock> blocks;
  int64_t left = ceil_div(channels, lanes), lane = 0;
  while (left) {
    const int64_t vectors =
        most_vectors == 2 && left == 3 ? 3 : ceil_div(left, ceil_div(left, most_vectors));
    blocks.push_back({lane, std::min(vectors * lanes, channels - lane), static_cast<int>(vectors)});
    lane += vectors * lanes;
    left -= vectors;
  }
  return blocks;
}

// So many rows as panels of tiles, and of how many vectors these are: two make the best tile, as
// long as there are rows.
inline int64_t row_panels(const Arithmetic& arithmetic, int64_t rows) {
  return ceil_div(rows, arithmetic.tiles.max_rows[2]);
}
inline int64_t panel_vectors(const Arithmetic& arithmetic, int64_t rows) {
  int vectors = 2;
  while (vectors < kMaxVectors &&
         arithmetic.tiles.max_rows[vectors + 1] >= ceil_div(rows, row_panels(arithmetic, rows)))
    ++vectors;
  return vectors;
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

// Of any of these parts: the first one may be a group's last, which has fewer than others.
inline int64_t most_blocks(std::span<const BlockRange> parts) {
  return std::ranges::max_element(parts, {}, &BlockRange::blocks)->blocks;
}

// The parts of all groups; their weights are packed so many at a time.
struct Parting {
  std::vector<BlockRange> parts;
  int64_t per_pass, largest_lanes;
};

// Parts of up to `most_blocks` of a group's blocks, each computed in so many boxes; those that are
// packed at a time have up to `room` blocks, if more than one. Smaller parts where threads would
// wait for each other. `copied`: elements that each part copies, for a product of a channel.
Parting cut_blocks(const std::vector<LaneBlock>& blocks, int lanes, int64_t groups, int64_t boxes,
                   int64_t most_blocks, int64_t room, double copied);

// Lanes from one pixel of a stage to the next: they do not all begin in the same sets of the cache.
inline int64_t stage_pitch(int64_t lanes) { return lanes % 64 == 0 ? lanes + 16 : lanes; }

}  // namespace convtbw::simd
