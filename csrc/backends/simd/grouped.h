// What the plans for groups of few channels share. Their lanes are the channels of one side, the
// *lane side*, across groups, a vector of them a *panel*. The other side is *spread*: with C of its
// channels in a group there are C *planes*, and lane (group, i) of plane c holds its channel
// (group, c). Every product of the trilinear form is then one lane of plane * lane side, and no
// lane is multiplied in vain. Depthwise, the one plane is the other side itself.
#pragma once

#include <functional>
#include <vector>

#include "backends/simd/box.h"
#include "backends/simd/phases.h"
#include "core/problem.h"

namespace convtbw::simd {

// Which channels of its tensor the lanes of a side hold.
struct LaneOrder {
  int64_t lanes;        // in all groups
  int64_t group_lanes;  // of one group
  int64_t planes;       // 1 for the lane side itself

  bool spread() const { return planes > 1 || group_lanes > 1; }
  int64_t first_channel(int64_t lane) const { return lane / group_lanes * planes; }
};

// Of the side that is spread over the lanes of the other.
LaneOrder spread_order(const Geometry& geometry, Role lane_role);

// Packs boxes of one side into [panel][plane][position][lane].
class LaneSide {
 public:
  LaneSide(const Arithmetic& arithmetic, const Tensor& tensor, const LaneOrder& order);

  // Panels are packed up to so many at a time, from a multiple of that number on.
  void set_sizes(const PerAxis<Strip>& strips, int64_t part_panels);

  void pack(const void* data, const BoxRange& box, int64_t first_panel, int64_t panels,
            char* memory) const;

  const PerAxis<Strip>& strips() const { return packing_.strips; }
  int64_t planes() const { return order_.planes; }
  int64_t plane_units() const { return positions_ * lanes_; }
  int64_t panel_units() const { return order_.planes * plane_units(); }
  // The packed panels and, behind them, what packing needs besides.
  int64_t memory_units() const { return part_panels_ * panel_units() + staging_units_; }

  // Units that so many positions and panels take, for choosing sizes.
  int64_t units_of(int64_t positions, int64_t part_panels) const;

 private:
  int64_t pitch_of(int64_t part_panels) const;

  const Arithmetic& arithmetic_;
  const int64_t lanes_;  // of a vector
  LaneOrder order_;
  Packing packing_;
  int64_t part_panels_ = 1, positions_ = 0, pitch_ = 0, staging_units_ = 0;
  std::vector<Panel> panels_;     // of the side itself, or for each part the channels to spread
  std::vector<int32_t> indices_;  // of every panel's lanes, in the part's channels
};

// Where in the weights the lanes of a panel are, for one plane and tap: up to one piece a group.
class LaneWeights {
 public:
  LaneWeights(const WeightsStrides& strides, Role lane_role, const LaneOrder& spread_order);

  int64_t plane_stride() const { return plane_; }

  // f(first of the lanes, their number, offset of the first in the weights, lane stride)
  template <class F>
  void for_each_piece(int64_t first, int64_t lanes, const F& f) const {
    for (int64_t lane = first, end = first + lanes; lane < end;) {
      const int64_t group = lane / piece_, last = std::min(end, (group + 1) * piece_);
      f(lane - first, last - lane, group * group_ + lane % piece_ * lane_, lane_);
      lane = last;
    }
  }

 private:
  int64_t piece_;  // lanes at a constant stride
  int64_t group_, lane_, plane_;
};

// What is packed and computed at a time.
struct PartSizes {
  int64_t panels;
  PerAxis<int64_t> windows;
};

// How much so many windows take: `positions` ascends with packing, `bytes` with the buffers.
struct BoxCost {
  std::function<int64_t(const PerAxis<int64_t>& windows)> positions;
  std::function<int64_t(const PerAxis<int64_t>& windows, int64_t panels)> bytes;
};

// Depends on the shape alone, so that results do not depend on the number of threads.
PartSizes part_sizes(const PerAxis<int64_t>& extent, int64_t panels, int64_t lanes,
                     bool channels_contiguous, const BoxCost& cost);

}  // namespace convtbw::simd
