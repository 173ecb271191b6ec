// fprop and dgrad with at least a few channels on either side: an implicit GEMM whose rows are
// pixels of the result, whose lanes are its channels, and which sums over taps and the other side's
// channels. Rows of the operand are copied, zero-padded and channels last, into a small buffer, and
// the register tile broadcasts straight from there: taps and channels are one contiguous run.
// All phases (phases.h) share the buffer. But where fprop's windows overlap and are many rows
// apart, those that one remainder of taps modulo the stride meets are packed at a time, so that
// there is room for many windows. Where what would be copied is much beside the products, the tile
// reads the operand in place, if its channels are last and nothing has to be converted; else a copy
// of all of it, if it is small and boxes share much of it.
#pragma once

#include <optional>
#include <vector>

#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/packed_taps.h"
#include "backends/simd/phases.h"

namespace convtbw::simd {

class DataPlan : public DirectedPlan {
 public:
  DataPlan(const Problem& problem, const Arithmetic& arithmetic, std::optional<int> phased);
  void run(const Operands& operands) const override;
  // Whether tiles read a copy of all of the operand.
  bool copies() const { return reading_ == Reading::copy; }

 private:
  // A range of the channels that are summed over.
  struct Chunk {
    int64_t first, channels;
    int64_t position;                  // elements from one position of the buffer to the next
    int64_t weights;                   // offset of its packed weights, for one lane
    std::vector<int64_t> phase_units;  // of the weights before each phase, for one lane
    // By phase and by vectors of the block: [phase * (kMaxVectors + 1) + vectors]
    std::vector<FoldedRuns> runs;
  };

  // What is packed at a time, of the channels of a chunk.
  struct Turn {
    PerAxis<PhasedAxis> axes;
    PerAxis<Strip> strips;  // where the windows of a packed box are
    Packing packing;
    size_t first_phase, end_phase;
  };

  // Where the operand of tap t of window u lies along an axis, in elements: at
  // from + u * window + t * tap.
  struct Walk {
    int64_t from, window, tap;
  };

  // Where a box and its results lie, and room for where the rows of tiles begin.
  struct Place {
    const char* a;  // the buffer, or where the chunk's channels begin in the operand or its copy
    char* c;        // result position 0, lane part.lane
    PerAxis<int64_t> c_stride;
    int64_t *a_rows, *c_rows;
  };

  // Where tiles read the operand: in a thread's copy of what a box meets, in a copy of all of it
  // that is made once, or where it lies.
  enum class Reading : uint8_t { box, copy, in_place };

  // Along which axes boxes grow first.
  enum class Growth : uint8_t { rows, images };

  struct Layout {
    Growth growth;
    Reading reading;
  };

  // What it costs, in products of a lane and a channel.
  struct Choice {
    Reading reading;
    double cost;
  };

  // Of a lane and a channel: with the taps that edges_ leaves, and without any absent one.
  struct Products {
    double least, present;
  };

  void choose_layout(bool staged);
  void lay_out(const Layout& layout, bool staged);
  void choose_sizes(Growth growth);
  void cut_channels(int64_t most);
  void cut_result(int64_t width, int64_t stage_lanes);
  int64_t most_phase_steps() const;
  int64_t lane_bytes() const;
  int64_t groups_at_once() const;
  double copied_positions() const;
  void lay_out_copy();
  Products choose_edges();
  Choice best_reading(const Products& products) const;
  // In place, or as a copy of all of the operand, if either may be.
  std::optional<Reading> unboxed_reading() const;
  double cost_of_boxes(const Products& products) const;
  double cost_of_unboxed(Reading reading, const Products& products) const;
  double copied_for_all_parts() const;
  double operand_positions() const;
  double vectors_of_all_lanes() const;
  // `box`: its first windows.
  PerAxis<Walk> walk(const Turn& turn, const BoxPhase& phase, const Chunk& chunk,
                     const PerAxis<int64_t>& box) const;
  FoldedRuns runs(const Turn& turn, const BoxPhase& phase, const PerAxis<Range>& taps,
                  const Chunk& chunk, int vectors) const;
  template <class F>
  void for_each_piece(size_t phase, const BoxRange& windows, const F& f) const;
  template <class F>
  void run_windows(const BlockRange& part, const Chunk& chunk, const Turn& turn, size_t phase,
                   const BoxRange& box, const BoxRange& windows, const PerAxis<Range>& taps,
                   const Place& place, const char* packed, const char* bias,
                   const F& meanwhile) const;
  const char* pack_bias(const void* bias, char* packed) const;
  void copy_box(const Operands& operands, int64_t index, bool streamed, char* copy) const;
  void run_box(const Operands& operands, const char* copy, const BlockRange& part,
               const BoxRange& box, const BlockRange& next_part, const BoxRange& next_box,
               const char* packed, const char* bias) const;
  void fill(const BlockRange& part, const BoxRange& positions, char* c,
            const PerAxis<int64_t>& c_stride, const char* bias) const;

  int64_t covered(const PerAxis<int64_t>& windows) const {
    return positions_covered(windows, axes_, out_);
  }
  // A thread's: where the rows of tiles begin, the operand's rows, the stage.
  int64_t local_bytes() const {
    return 2 * tile_list_ * int64_t{sizeof(int64_t)} + (buffer_units_ + stage_units_) * unit();
  }
  static PerAxis<Range> all_taps(const BoxPhase& phase) {
    PerAxis<Range> taps;
    for (int a = 0; a < kBoxRank; ++a) taps[a] = {0, phase.axes[a]->sliding.taps};
    return taps;
  }
  // Of the buffer: rows begin with whole units.
  int64_t row_elements(int64_t positions, const Chunk& chunk) const {
    return weights_.whole_units(positions * chunk.position);
  }
  // Whether elements of the result are narrower than sums.
  bool rounded() const { return element() < unit(); }
  // Bytes of what tiles write.
  int64_t written() const { return staged_ ? unit() : element(); }

  std::vector<LaneBlock> blocks_;
  PerAxis<PhasedAxis> axes_;
  std::vector<Turn> turns_;
  std::vector<BoxPhase> phases_;  // of all turns
  std::vector<PerAxis<bool>>
      edges_;  // by phase: the axes along which windows at the edge are apart
  std::vector<Chunk> chunks_;
  const bool pairs_run_on_;
  const PackedTaps weights_;
  Packing unpacking_;
  BoxGrid grid_;
  std::vector<BlockRange> parts_;
  int64_t parts_per_pass_, largest_part_lanes_;
  Reading reading_;
  // Strides of the operand or of its copy, in elements of units; but for Reading::box.
  PerAxis<int64_t> read_stride_;
  // For Reading::copy: of a group, and from one to the next.
  Packing copy_packing_;
  BoxGrid copy_grid_;
  int64_t read_group_;
  bool staged_;
  bool far_result_;       // transposed into main memory
  bool far_operand_;      // in main memory
  bool complete_ = true;  // every result position belongs to a phase
  int64_t most_steps_;
  int64_t buffer_units_, stage_units_, tile_list_;
  // Behind the packed weights the bias, and the copy of the operand.
  int64_t part_units_, bias_lanes_, copy_units_, workspace_units_;
  int64_t weights_units_;  // packed weights for one lane
};

}  // namespace convtbw::simd
