// What the plans for groups of few channels share. Their lanes are the channels of one side, the
// *lane side*, across groups. The other side is *spread*: with C of its channels in a group there
// are C *planes*, and lane (group, i) of plane c holds its channel (group, c). Every product of the
// trilinear form is then one lane of plane * lane side, and no lane is multiplied in vain. Planes
// are written to memory, or spread by the kernels (Spreading).
// Depthwise, the one plane is the other side itself.
//
// Both sides are met channels last. Sums whose channels are contiguous are read where they lie,
// other tensors a box at a time, transposed or converted. Neither has padding: windows that reach
// into it are separate *regions* with fewer taps.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "backends/simd/box.h"
#include "backends/simd/box_prefetch.h"
#include "backends/simd/edges.h"
#include "backends/simd/phases.h"
#include "core/problem.h"
#include "core/scratch.h"

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

// Where that side's channels are spread, if at all: as planes in memory, or by the kernels, plane
// by plane, in registers or, where a vector is of one group, by broadcasts. Time over that of
// planes (Zen 3, float32 and bfloat16, 3x3 to 5x5, 7x7 to 56x56, 1-D and 3-D):
// - in registers, groups of 2 and 4: channels last 0.4 to 0.75, weights gradients channels first
//   0.45 to 0.8; of 8, 16 lanes (Zen 5): channels last 0.3 to 0.75;
// - by broadcast, 1 to 6 channels beside 8 to 64, channels last (90 random layers, up to 7x7): 0.15
//   to 1.0, 0.55 in the mean; rows of 4 and fewer 0.6 to 2.3. Weights gradients 0.2 to 1.0.
enum class Spreading : uint8_t { in_memory, in_registers, by_broadcast };
// `row`: results of one, or windows.
Spreading spreading_of(const Problem& problem, const LaneOrder& order, const Arithmetic& arithmetic,
                       int64_t row);

// Those that spread, and what explain() says of them; nullptr and nothing where lanes are spread in
// memory.
const SpreadingKernels* spreading_kernels(Spreading spreading, const Arithmetic& arithmetic);
const char* in_words(Spreading spreading);

// Zeros are copied too, so that windows have all taps, unless this part of the windows has no
// absent one, or so many, in the mean, meet the same taps: regions would be of few or single
// windows.
struct LeastRegions {
  double whole, alike;
};

// Channels last.
LeastRegions least_regions_in_place(Spreading spreading, double alike);

// Channels first: whether rows are long, so that nothing is lost by copying them one by one with
// zeros at both ends, and large kernels would make many regions: 1-D k31 takes 1.2 times as long
// without the zeros.
bool many_regions(const Tensor& tensor, const std::vector<Sliding>& ways);

// The lanes are computed part by part. Those behind the last whole vector belong to the last part,
// so that each has a vector's worth unless there are fewer altogether.
struct LaneParts {
  int64_t lanes, width;  // of all groups, of a vector
  int64_t part_vectors = 1;

  struct Range {
    int64_t begin, count;
  };

  int64_t vectors() const { return std::max<int64_t>(1, lanes / width); }
  int64_t count() const { return ceil_div(vectors(), part_vectors); }
  Range part(int64_t index) const {
    const int64_t begin = index * part_vectors * width;
    return {begin, (index + 1 < count() ? part_vectors * width : lanes - begin)};
  }
  // Of any part; the first lane of vector i of a part, the last vector overlapping.
  int64_t most_lanes() const {
    return std::min(lanes, part_vectors * width + (lanes > width ? lanes % width : 0));
  }
  int64_t pitch() const { return odd_lines(ceil_div(most_lanes(), width) * width); }
  int64_t lane(const Range& part, int64_t vector) const {
    return std::max<int64_t>(0, std::min(vector * width, part.count - width));
  }
};

// Where the lanes of a part are in memory.
struct LaneView {
  const char* data;         // lane 0 at position 0 of every axis, though that be elsewhere
  PerAxis<int64_t> stride;  // from one position to the next, in units or, in place, elements
  PerAxis<int64_t> origin;  // of the windows: what positions are counted from
  int64_t plane;            // units from one plane to the next; 0 where kernels tell them apart
};

// One side: boxes of windows as a LaneView.
class LaneSide {
 public:
  // `in_place`: whether the kernel should read elements where they lie, if it can; it converts
  // those of 16 bits. `keeping`: whose copies keep bfloat16 as it is, or nullptr; not for a side
  // that is spread.
  LaneSide(const Arithmetic& arithmetic, const Tensor& tensor, const LaneOrder& order,
           Spreading spreading, const PerAxis<std::vector<Sliding>>& ways,
           const PerAxis<int64_t>& windows, bool in_place, const LeastRegions& least,
           const Arithmetic* keeping = nullptr);

  void set_sizes(const PerAxis<int64_t>& windows, const LaneParts& parts);

  // `memory` for what is not read in place.
  LaneView view(const void* data, const BoxRange& box, int64_t part, char* memory) const;

  // What brings what view() will read of such a box towards the caches; of nothing in place.
  BoxPrefetch prefetch(const void* data, const BoxRange& box, int64_t part, int64_t steps) const;

  // Tap k of window u lies at position offset + (u - origin)*window + k*tap.
  const PerAxis<Strip>& strips() const { return packing_.strips; }
  // Whether absent positions are zeros in memory. Otherwise they are not there.
  bool padded() const { return padded_; }
  bool in_place() const { return in_place_; }
  // Of what a view is of.
  Dtype dtype() const {
    return in_place_ || packing_.keeps ? packing_.tensor.dtype : sum_dtype(packing_.tensor.dtype);
  }
  int64_t planes() const { return spreads_ ? order_.planes : 1; }
  int64_t memory_bytes() const { return whole_lines(memory_units_ * unit()); }

  // For choosing sizes: positions and bytes that so many windows take.
  int64_t positions_of(const PerAxis<int64_t>& windows) const;
  int64_t bytes_of(const PerAxis<int64_t>& windows, const LaneParts& parts) const {
    return units_of(windows, parts) * unit();
  }

 private:
  PerAxis<Strip> strips_of(const PerAxis<int64_t>& windows) const;
  int64_t units_of(const PerAxis<int64_t>& windows, const LaneParts& parts) const;
  LaneParts::Range channels_of(const LaneParts::Range& lanes) const;
  template <class F>
  LaneView for_each_met_row(const BoxRange& box, int64_t pitch, char* memory, const F& f) const;
  LaneView pack(const void* data, const BoxRange& box, const LaneParts::Range& channels,
                int64_t pitch, char* memory) const;
  void spread(const Spread& positions, Dtype dtype, int64_t part) const;
  int64_t most_channels(const LaneParts& parts) const;
  int64_t staging_pitch(const LaneParts& parts) const;
  int64_t pitch(const LaneParts& parts) const;
  int64_t unit() const { return packing_.unit(); }
  // Whether positions are copied before they are spread, to be transposed or beside zeros. Others
  // that were took 1.2 to 1.3 times as long in the mean, windows of one row 2.0 to 3.1 times (three
  // contractions, every dtype, 9 layers of 1 to 12 channels a group, two threads of Zen 4).
  bool stages() const { return spreads_ && (padded_ || packing_.tensor.channel != 1); }

  const Arithmetic& arithmetic_;
  const LaneOrder order_;
  const bool spreads_;   // in memory
  const int64_t plane_;  // of a view that is not
  const PerAxis<std::vector<Sliding>> ways_;
  bool padded_;
  const bool in_place_;
  Packing packing_;
  LaneParts parts_;
  int64_t positions_ = 0, memory_units_ = 0;
  std::vector<int32_t> indices_;  // of every vector's lanes, from the channel of its first on
};

// In how many sets of the first-level cache (64 of 8 lines) positions so many bytes apart lie.
inline int64_t cache_sets(int64_t step) {
  constexpr int64_t kSets = 64;
  return std::min(kSets, kSets * kLineBytes / std::gcd(step, kSets * kLineBytes));
}

// The most positions that one window may meet anew and that are prefetched.
inline constexpr int64_t kMaxAhead = 64;
// How far along a line they are prefetched where there is but one.
inline constexpr int64_t kAheadPixels = 32;

// A box of windows that meet the same taps.
struct Region {
  BoxRange windows;
  PerAxis<int64_t> tap, taps;

  // Pixels that are computed together lie along this axis: the last one, unless it is short.
  int64_t along() const {
    constexpr int64_t kEnough = 6;
    const auto longest = std::max_element(windows.count.begin(), windows.count.end());
    return windows.count[3] >= kEnough ? 3 : longest - windows.count.begin();
  }

  // f(first window) for every line along an axis.
  template <class F>
  void for_each_line(int64_t along, const F& f) const {
    PerAxis<int64_t> count = windows.count, u;
    count[along] = 1;
    const auto& begin = windows.begin;
    for (u[0] = begin[0]; u[0] < begin[0] + count[0]; ++u[0])
      for (u[1] = begin[1]; u[1] < begin[1] + count[1]; ++u[1])
        for (u[2] = begin[2]; u[2] < begin[2] + count[2]; ++u[2])
          for (u[3] = begin[3]; u[3] < begin[3] + count[3]; ++u[3]) f(u);
  }
};

// What windows some lines further meet that those before them did not, in units behind tap 0; their
// number. None where it is much.
int64_t list_ahead(const PerAxis<Footing>& footings, const LaneView& view, const Region& region,
                   int64_t lines, int64_t* ahead);

// f(region) for all windows; `padded`: every tap is present, as it counts along the axes from
// `first_whole` on anyway.
template <class F>
void for_each_region(const PerAxis<Sliding>& sliding, const Tensor& tensor, bool padded,
                     const BoxRange& windows, const F& f, int first_whole = kBoxRank) {
  Region region{windows, {}, {}};
  region.taps[0] = 1;
  const auto cut = [&](int a, const auto& next) {
    const Range all{windows.begin[a], windows.begin[a] + windows.count[a]};
    const auto part = [&](const Range& some, const Range& taps) {
      region.windows.begin[a] = some.begin;
      region.windows.count[a] = some.end - some.begin;
      region.tap[a] = taps.begin;
      region.taps[a] = taps.end - taps.begin;
      next();
    };
    if (padded || a >= first_whole)
      part(all, {0, sliding[a].taps});
    else
      for_each_edge(sliding[a], tensor.extent[a], all, part);
  };
  cut(1, [&] { cut(2, [&] { cut(3, [&] { f(region); }); }); });
}

// Where in the weights lanes are, for one plane and tap: up to one piece a group.
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

// Where channels are contiguous, pixels are read in long pieces: 256 channels of 256 in 2.1 to 2.3
// ms, 128 of 256 in 2.9 to 3.2, 64 of 256 in 2.6 to 3.6 (4x4 stride 2 of 32x32, Zen 4).
inline constexpr int64_t kManyLanes = 256;

// What is packed and computed at a time.
struct PartSizes {
  LaneParts parts;
  PerAxis<int64_t> windows;
};

// How much so many windows take: `positions` ascends with packing, `bytes` with the buffers.
struct BoxCost {
  std::function<int64_t(const PerAxis<int64_t>& windows)> positions;
  std::function<int64_t(const PerAxis<int64_t>& windows, const LaneParts& parts)> bytes;
};

// `extent`: of each slice; `least_images`: of a box, if there are. Both depend on the shape alone,
// so that results do not depend on the number of threads.
PartSizes in_place_sizes(const PerAxis<int64_t>& extent, LaneParts parts, int64_t most_lanes,
                         int64_t slices, int64_t least_images = 1);
PartSizes part_sizes(const PerAxis<int64_t>& extent, LaneParts parts, int64_t planes,
                     bool channels_contiguous, const BoxCost& cost, int64_t slices,
                     int64_t least_images = 1);

}  // namespace convtbw::simd
