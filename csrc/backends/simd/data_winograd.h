// fprop and dgrad of many channels in float32, where windows have two or three taps along the last
// two axes, as in 3x3 convolutions, or do so in each phase of the stride, as in 4x4 ones of stride
// 2: by Winograd's minimal filtering, 2.25 times fewer products. The operand's windows of
// 4x4 are transformed to 16 frequencies, each of which is a GEMM of its own over channels and the
// taps of the first axis; the products are transformed to results. Sums are shorter than those of
// the direct method by the taps, and so is the rounding error: of 3x3, 64 and 512 channels, 0.6 and
// 0.35 of that of torch's.
//
// The transforms join pixels that no window joins, which matters where they are not finite: then
// the direct method computes the call again.
#pragma once

#include <memory>
#include <vector>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/winograd_tiles.h"

namespace convtbw::simd {

class WinogradPlan : public DirectedPlan {
 public:
  WinogradPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A range of the channels that are summed over, whose frequencies are in the cache together.
  struct Chunk {
    int64_t first, channels;
    int64_t row = 0;                 // of the packed weights: units for one lane before it
    std::vector<FoldedRuns> runs{};  // [phase of axis 1][vectors]
  };

  void choose_sizes();
  void choose_boxes();
  void cut_channels();
  void cut_result(int64_t width);
  int64_t lane_bytes() const;
  int64_t sizes() const;  // of boxes, over the usual ones
  int64_t groups_at_once() const;
  int64_t positions(const PerAxis<int64_t>& tiles) const;
  void pack_weights(const Operands& operands, const BlockRange& part, const LaneBlock& block,
                    const Range& channels, bool streamed, char* packed) const;
  bool run_box(const Operands& operands, const BlockRange& part, const BoxRange& box,
               const BlockRange& next_part, const BoxRange& next_box, const char* packed,
               const char* bias) const;
  bool run_phase(const BlockRange& part, const BoxRange& box, size_t i1, size_t i2, size_t i3,
                 const char* packed, const char* bias, char* memory, BoxPrefetch& prefetch) const;
  void unpack(const Operands& operands, const BlockRange& part, const BoxRange& box,
              const char* stage) const;
  const char* pack_bias(const void* bias, char* packed) const;

  // A thread's: where the rows of tiles begin, the operand's rows, frequencies, products, results.
  int64_t local_bytes() const {
    return 2 * list_ * int64_t{sizeof(int64_t)} +
           (buffer_units_ + frequency_units_ + product_units_ + stage_units_) * 4;
  }
  // Units from one frequency of the operand to the next.
  int64_t frequency_pitch(const Chunk& chunk) const {
    return odd_lines(strips_[0].length * strips_[1].length * grid_.size[2] * grid_.size[3] *
                     chunk.channels);
  }
  const BoxPhase& phase(size_t i1, size_t i2, size_t i3) const {
    return phases_[(i1 * axes_[2].phases.size() + i2) * axes_[3].phases.size() + i3];
  }
  // Rows of packed weights, units for one lane: of a frequency of a chunk's phase (an odd number,
  // as for odd_lines), and of all phases before it.
  int64_t frequency_rows(const Chunk& chunk, size_t i1) const {
    return axes_[1].phases[i1].sliding.taps * chunk.channels | 1;
  }
  int64_t rows_before(const Chunk& chunk, size_t i1, size_t i2, size_t i3) const {
    const auto across = static_cast<int64_t>(axes_[2].phases.size() * axes_[3].phases.size());
    int64_t rows = static_cast<int64_t>(i2 * axes_[3].phases.size() + i3) *
                   (i1 < axes_[1].phases.size() ? frequency_rows(chunk, i1) : 0);
    for (size_t i = 0; i < i1; ++i) rows += across * frequency_rows(chunk, i);
    return kFrequencies * rows;
  }
  // Where the packed weights of a block begin, in those of a part.
  int64_t block_offset(const Chunk& chunk, size_t i1, size_t i2, size_t i3, const BlockRange& part,
                       const LaneBlock& block) const {
    return (chunk.row + rows_before(chunk, i1, i2, i3)) * part.lanes +
           kFrequencies * frequency_rows(chunk, i1) * (block.lane - part.lane);
  }
  // Result positions of an axis for so many tiles.
  int64_t covered(int a, int64_t tiles) const { return tiles * per_tile_[a] * axes_[a].step; }

  std::vector<LaneBlock> blocks_;
  const PerAxis<PhasedAxis> axes_;
  PerAxis<int64_t> per_tile_{1, 1, 1, 1};  // windows of a tile
  PerAxis<bool> summed_{};                 // an axis' phases yield the same results
  PerAxis<int64_t> taps_{1, 1, 1, 1};      // of all of an axis' phases, absent ones included
  std::vector<BoxPhase> phases_;
  std::vector<Chunk> chunks_;
  PerAxis<Strip> strips_;  // where the tiles of a packed box are
  Packing packing_;
  BoxGrid grid_;  // of tiles
  std::vector<BlockRange> parts_;
  int64_t parts_per_pass_, largest_part_lanes_;
  int64_t weights_rows_ = 0;  // of all packed weights
  int64_t all_taps_ = 1;      // of the weights
  bool taps_contiguous_;      // in the weights, where channels are not
  int64_t list_;              // tiles of a box
  int64_t group_blocks_;      // whose products are in the cache together
  int64_t buffer_units_, frequency_units_, product_units_, stage_units_;
  int64_t bias_lanes_, workspace_units_;
  PerAxis<int64_t> stage_;  // strides
  const std::unique_ptr<const Plan> direct_;
};

}  // namespace convtbw::simd
