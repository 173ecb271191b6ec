// wgrad with at least a few channels on either side: an implicit GEMM that sums over pixels. Its
// rows are channels of one side, its lanes channels of the other, and every tap has tiles of its
// own: they differ only in where they begin in x. Both sides are packed, box of pixels by box, into
// panels as wide as the tile's sides.
//
// Where x's channels fill neither a tile's rows nor whole vectors, the taps of the last axis join
// them: pixels and channels of x are contiguous, so rows or lanes run over both. Channels first,
// lanes are taps of one channel where these are whole vectors: x is not transposed.
#pragma once

#include <atomic>
#include <vector>

#include "backends/simd/box.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "plan/backend.h"

namespace convtbw::simd {

// A range of the other side's channels, packed side by side.
struct RowPanel {
  int64_t channel, channels;
  int64_t rows;  // channels, or channels * taps of the last axis where x's are joined
};

class WeightsPlan : public Plan {
 public:
  WeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override { compute(operands, nullptr); }
  // The same. Whether all sums are finite.
  bool run_checked(const Operands& operands) const {
    std::atomic<bool> finite = true;
    compute(operands, &finite);
    return finite;
  }

 private:
  // Of a sum between folds (folded_runs.h), if rows are no longer. 16x16 from 21 to 21 channels,
  // rows of 64, 512 at a time: the error is 1.5 times a blocked gemm's without folds, 0.6 times if
  // each row is folded, which takes 1.03 to 1.1 times as long. Longer rows are cut: from 128 to 128
  // channels of 2048, k11, the error is 0.93 times a gemm's instead of 1.55; 1.0 to 1.03 times as
  // long (Zen 3).
  int64_t most_steps() const { return simd::most_steps(arithmetic_, 2 * kMaxSteps); }

  struct Side {
    int64_t channels;
    Packing packing;
    int64_t positions;  // of a box's buffer, for one channel
  };

  // A part of one group's weights.
  struct Part {
    int64_t group;
    int64_t first_block, blocks, first_panel, panels;
    int64_t units;  // of its sums
  };

  // How a panel's sums lie: units from one row to the next, from one tap to the next.
  struct SumSteps {
    int64_t row, tap;
  };

  // A block of lanes of a part, and where its sums lie among the part's.
  struct PartBlock {
    int64_t part, block, offset;
  };

  void choose_roles();
  bool taps_fill_lanes() const;
  void choose_sizes();
  void choose_chunks(int64_t parts, int64_t most_chunks);
  void list_parts(int64_t most_blocks, int64_t most_panels);
  void choose_packing();
  void lay_out_by_tap();
  void join_packing();
  // `finite`: becomes false if a sum is not; or nullptr.
  void compute(const Operands& operands, std::atomic<bool>* finite) const;
  void run_boxes(const Operands& operands, const Part& part, int64_t first_box, int64_t boxes,
                 char* sums, char* memory, std::atomic<bool>* finite) const;
  char* weights_of(const Operands& operands, int64_t group, const LaneBlock& block,
                   const RowPanel& panel) const;
  void finish(const Operands& operands, int64_t group, const LaneBlock& block,
              const RowPanel& panel, char* sums, std::atomic<bool>* finite) const;
  int64_t tap_offset(int64_t tap) const;
  // The last one that has several taps, if any has.
  int inner_axis() const {
    int axis = kMaxRank - 1;
    while (axis > 0 && problem_.geometry.axes[axis].k == 1) --axis;
    return axis;
  }
  bool joined_rows() const { return joined_ && lanes_on_y_; }
  bool joined_lanes() const { return joined_ && !lanes_on_y_; }
  // Units from one pixel of x to the next in a buffer of lanes in blocks of `width`.
  int64_t x_pitch(int64_t width) const {
    return lanes_on_y_ ? pitch_ : !joined_ ? width : taps_in_lanes_ ? 1 : x_.channels;
  }
  // Where lanes are joined, the buffer's place of one of them.
  int64_t joined_place(int64_t lane) const {
    const int64_t taps = sliding_[3].taps;
    return taps_in_lanes_ ? lane / taps * x_channel_ + lane % taps : lane;
  }
  const Side& row_side() const { return lanes_on_y_ ? x_ : y_; }
  const Side& lane_side() const { return lanes_on_y_ ? y_ : x_; }
  // Units from one panel of `width` units a position to the next. Channels last, those of a pixel
  // go to all panels: multiples of 4 KB apart these take 1.03 to 1.18 times as long (one tap, 256
  // pixels, Zen 5).
  static int64_t panel_step(const Side& side, int64_t width) {
    return odd_lines(width * side.positions);
  }
  int64_t row_stride() const { return lanes_on_y_ ? problem_.w.x_channel : problem_.w.y_channel; }
  int64_t lane_stride() const { return lanes_on_y_ ? problem_.w.y_channel : problem_.w.x_channel; }
  int64_t panel_units(const RowPanel& panel, const LaneBlock& block) const {
    return panel.rows * row_taps_ * block.vectors * arithmetic_.lanes;
  }
  int64_t block_units(const Part& part, const LaneBlock& block) const;
  SumSteps sum_steps(const RowPanel& panel, const LaneBlock& block) const;
  bool meets_padding(const BoxRange& box) const;
  BoxRange windows_of_tap(const BoxRange& box, const PerAxis<int64_t>& tap) const;
  int64_t fill_runs(const BoxRange& box, const BoxRange& windows, int64_t width, Run* runs) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }

  const Problem all_, problem_;  // of all slices, of one
  const Arithmetic& arithmetic_;
  bool lanes_on_y_, joined_;  // joined: x's channels with the taps of the last axis
  bool taps_in_lanes_ = false;
  int64_t x_channel_;  // taps in lanes: from one channel of a box's buffer to the next
  bool taps_inside_;   // in the weights, of both channels
  PerAxis<Sliding> sliding_;
  PerAxis<Strip> x_strips_, y_strips_;  // where the windows of a packed box are
  int64_t steps_;                       // windows that one unit holds
  Side x_, y_;
  std::vector<LaneBlock> blocks_;
  std::vector<RowPanel> panels_;
  int64_t pitch_;     // of a row panel's pixels
  int64_t row_taps_;  // taps that have tiles of their own
  int64_t max_panel_ = 0;
  BoxGrid grid_;
  std::vector<Part> parts_;
  std::vector<PartBlock> part_blocks_;
  int64_t chunks_, boxes_per_chunk_;
  bool keeps_sums_;      // of a part, from box to box; else of a panel, which are finished at once
  bool writes_weights_;  // tiles do: there is one box, and lanes are neighbours in the weights
  int64_t part_units_ = 0;
  int64_t run_count_, run_lists_;
  int64_t run_bytes_, row_buffer_bytes_, buffer_bytes_, local_bytes_;
};

}  // namespace convtbw::simd
