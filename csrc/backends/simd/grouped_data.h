// fprop and dgrad of groups of few channels (grouped.h): lanes are the result's channels across
// groups. A row of results is a sum over planes and taps of the other side's lanes times weights,
// for several pixels at once. dgrad is one such problem for every phase (phases.h).
#pragma once

#include <vector>

#include "backends/simd/directed_plan.h"
#include "backends/simd/grouped.h"
#include "backends/simd/phases.h"

namespace convtbw::simd {

class GroupedDataPlan : public DirectedPlan {
 public:
  GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic, const Arithmetic* pairs);
  void run(const Operands& operands) const override;

 private:
  bool suits_bands() const;
  bool meets_too_much() const;
  bool cuts_many_rows() const;
  int64_t most_band_rows() const;
  // Whether taps of neighbouring rows are multiplied in pairs.
  bool suits_pairs() const;
  int64_t rows_together() const { return pairs_ && !pairs_channels_ ? 2 : 1; }
  bool met_in_place() const;
  LeastRegions least_regions() const;
  void choose_sizes();
  void pack_weights(const Operands& operands, int64_t vector, int64_t vectors, char* packed) const;
  int64_t taps_apart(const BoxPhase& phase, const LaneView& view, const Region& region,
                     int64_t along) const;
  void list_taps(const BoxPhase& phase, const LaneView& view, const Region& region, int64_t along,
                 LaneTapRun* runs, LaneRow& row) const;
  void run_box(const Operands& operands, int64_t part, const BoxRange& box,
               const char* packed) const;
  // How a phase's windows, their taps and results follow each other: units of the view, and those
  // between results.
  struct Steps {
    PerAxis<Sliding> sliding;
    PerAxis<int64_t> a_tap, a_window, c_window;
    int64_t a_first = 0, c_first = 0;  // where window 0's tap 0 lies, and its result
  };
  static Steps steps_of(const BoxPhase& phase, const LaneView& view,
                        const PerAxis<int64_t>& c_stride);
  // `row`: whose a and c lie at position 0 of every axis.
  void run_bands(const BoxRange& windows, const Steps& steps, const LaneRow& row,
                 LaneTapRow* tap_rows) const;
  void run_scatter(const BoxRange& windows, const Steps& steps, const LaneRow& row,
                   LaneTapRow* tap_rows) const;
  bool mixes_dtypes() const;
  bool suits_scatter() const;
  Phase joined_row_phases() const;
  bool gains_by_asking() const;
  bool overlaps_by_half() const;
  void run_overlapping(const Operands& operands, int64_t part, const BoxRange& box,
                       const char* packed) const;
  void fill(const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride, int64_t lanes,
            const char* start) const;

  int64_t weights_units() const { return (1 + taps_) * lanes_pitch_; }
  int64_t covered(const PerAxis<int64_t>& windows) const {
    return positions_covered(windows, axes_, out_);
  }
  int64_t local_bytes() const {
    return most_taps_ * int64_t{sizeof(LaneTapRun)} + side_.memory_bytes() +
           (stage_units_ + partial_units_) * unit();
  }

  const LaneOrder order_;  // of the operand
  PerAxis<PhasedAxis> axes_;
  const Spreading spreading_;
  const bool pairs_channels_;                        // whether planes are of pairs of channels
  const SpreadingKernels* const spreading_kernels_;  // or nullptr
  const int64_t planes_;
  LaneParts parts_;
  const int64_t lanes_pitch_;  // units of all lanes
  // Packed weights: [tap][lane], or by broadcast [vector][tap][lane of it]. Units from one tap, and
  // from one lane, of whole vectors, to the next.
  const int64_t weights_pitch_;
  int64_t w_lane_;
  const Arithmetic* pairs_;  // for rows of taps, or channels, in pairs, or nullptr
  LaneSide side_;
  const LaneWeights weights_;
  bool complete_ = true;  // every result position belongs to a phase
  bool asks_ahead_, asks_for_results_;
  bool banded_, scattered_, overlapping_ = false;
  bool staged_;      // results are sums in another order than the tensor's
  Dtype out_dtype_;  // of what is written first
  BoxGrid grid_;
  std::vector<BoxPhase> phases_;
  int64_t taps_ = 0, most_taps_ = 0;  // of all phases, of one; of all planes
  int64_t stage_units_, partial_units_ = 0;
};

}  // namespace convtbw::simd
