#include "backends/simd/grouped.h"

#include <algorithm>

namespace convtbw::simd {

LaneOrder spread_order(const Geometry& g, Role lane_role) {
  const bool lanes_on_y = lane_role == Role::y;
  const int64_t lanes = lanes_on_y ? g.y_channels : g.x_channels;
  return {g.groups * lanes, lanes, lanes_on_y ? g.x_channels : g.y_channels};
}

LaneSide::LaneSide(const Arithmetic& arithmetic, const Tensor& tensor, const LaneOrder& order)
    : arithmetic_(arithmetic),
      lanes_(arithmetic.lanes),
      order_(order),
      packing_{&arithmetic, tensor, {}} {}

// Units from one position to the next of the other side's channels before they are spread.
int64_t LaneSide::pitch_of(int64_t part_panels) const {
  const int64_t part_lanes = std::min(part_panels * lanes_, order_.lanes);
  // Wherever a part begins in a group, it meets at most so many.
  const int64_t groups = (part_lanes + order_.group_lanes - 2) / order_.group_lanes + 1;
  return ceil_div(groups * order_.planes, lanes_) * lanes_;
}

int64_t LaneSide::units_of(int64_t positions, int64_t part_panels) const {
  return positions *
         (part_panels * order_.planes * lanes_ + (order_.spread() ? pitch_of(part_panels) : 0));
}

void LaneSide::set_sizes(const PerAxis<Strip>& strips, int64_t part_panels) {
  packing_.strips = strips;
  part_panels_ = part_panels;
  positions_ = 1;
  for (const Strip& strip : strips) positions_ *= strip.length;
  pitch_ = pitch_of(part_panels);
  staging_units_ = order_.spread() ? positions_ * pitch_ + lanes_ : 0;

  for (int64_t first = 0; first < order_.lanes; first += part_panels * lanes_) {
    const int64_t end = std::min(first + part_panels * lanes_, order_.lanes);
    if (!order_.spread()) {
      for (int64_t lane = first; lane < end; lane += lanes_) {
        const int64_t live = std::min(lanes_, end - lane);
        panels_.push_back({lane, live, (lane - first) / lanes_ * panel_units(),
                           strips[3].length * lanes_, lanes_, 1, lanes_ - live});
      }
      continue;
    }
    const int64_t channel = order_.first_channel(first);
    const int64_t channels = order_.first_channel(end - 1) + order_.planes - channel;
    panels_.push_back(
        {channel, channels, 0, strips[3].length * pitch_, pitch_, 1, pitch_ - channels});
    for (int64_t lane = first; lane < ceil_div(end, lanes_) * lanes_; ++lane)
      indices_.push_back(
          static_cast<int32_t>(order_.first_channel(std::min(lane, order_.lanes - 1)) - channel));
  }
}

void LaneSide::pack(const void* data, const BoxRange& box, int64_t first_panel, int64_t panels,
                    char* memory) const {
  if (!order_.spread()) {
    pack_box(packing_, data, box, &panels_[first_panel], panels, memory);
    return;
  }
  const int64_t unit = packing_.tensor.dtype == Dtype::f64 ? 8 : 4;
  char* const staging = memory + part_panels_ * panel_units() * unit;
  pack_box(packing_, data, box, &panels_[first_panel / part_panels_], 1, staging);
  for (int64_t i = 0; i < panels; ++i) {
    const int32_t* const indices = &indices_[(first_panel + i) * lanes_];
    int32_t index[64];
    for (int64_t lane = 0; lane < lanes_; ++lane) index[lane] = indices[lane] - indices[0];
    arithmetic_.spread({staging + indices[0] * unit, pitch_, index,
                        memory + i * panel_units() * unit, plane_units(), order_.planes,
                        positions_});
  }
}

LaneWeights::LaneWeights(const WeightsStrides& strides, Role lane_role, const LaneOrder& order)
    : piece_(order.group_lanes),
      group_(strides.group),
      lane_(lane_role == Role::y ? strides.y_channel : strides.x_channel),
      plane_(lane_role == Role::y ? strides.x_channel : strides.y_channel) {
  // One piece where lanes go on at the same stride in the next group.
  if (piece_ == 1) lane_ = group_;
  if (group_ == piece_ * lane_) piece_ = order.lanes;
}

namespace {

// Positions packed for each window.
double packed_each(const PerAxis<int64_t>& windows, const BoxCost& cost) {
  return static_cast<double>(cost.positions(windows)) /
         static_cast<double>(windows[0] * windows[1] * windows[2] * windows[3]);
}

// The box of windows that packs least for each window within a limit of bytes.
PerAxis<int64_t> box_size(const PerAxis<int64_t>& extent, int64_t panels, int64_t limit,
                          const BoxCost& cost) {
  PerAxis<int64_t> size{1, 1, 1, 1};
  for (;;) {
    PerAxis<int64_t> best = size;
    double least = 0;
    for (int a = kBoxRank - 1; a >= 0; --a) {
      if (size[a] == extent[a]) continue;
      // Cuts are even: the last box of an axis is no small remainder.
      const int64_t cuts = ceil_div(extent[a], size[a]);
      const int64_t wanted = std::max(size[a] * 5 / 4, ceil_div(extent[a], cuts - 1));
      PerAxis<int64_t> next = size;
      next[a] = ceil_div(extent[a], ceil_div(extent[a], std::min(wanted, extent[a])));
      if (cost.bytes(next, panels) > limit) continue;
      const double packed = packed_each(next, cost);
      if (best == size || packed < least) {
        best = next;
        least = packed;
      }
      if (a == kBoxRank - 1 && cost.bytes(next, panels) < limit / 2) break;  // long rows first
    }
    if (best == size) return size;
    size = best;
  }
}

}  // namespace

PartSizes part_sizes(const PerAxis<int64_t>& extent, int64_t panels, int64_t lanes,
                     bool channels_contiguous, const BoxCost& cost) {
  // Half of a second-level cache. 200 to 800 KB are within 10 % of each other (Zen 4).
  constexpr int64_t kBytes = 384 << 10, kFewBytes = 24 << 10;
  // Where channels are contiguous, pixels are read in long pieces: 256 channels of 256 in 2.1 to
  // 2.3 ms, 128 of 256 in 2.9 to 3.2, 64 of 256 in 2.6 to 3.6 (4x4 stride 2 of 32x32, Zen 4).
  // Where pixels are, many channels at once pay while rows are so short that each costs as much as
  // its pixels: 64 instead of 8 take 0.61 of the time of 14x14, 1.4 of that of 112x112 (3x3).
  constexpr int64_t kManyLanes = 256, kFewLanes = 64, kSmallImage = 28 * 28;
  constexpr int64_t kItems = 32;  // enough to keep many threads busy until the end

  const auto even = [&](int64_t part) { return ceil_div(panels, ceil_div(panels, part)); };
  const bool small = extent[1] * extent[2] * extent[3] <= kSmallImage;
  const int64_t part_lanes = channels_contiguous ? kManyLanes : small ? kFewLanes : lanes;
  PartSizes sizes{even(std::max<int64_t>(1, part_lanes / lanes)), {}};
  int64_t limit = kBytes;
  sizes.windows = box_size(extent, sizes.panels, limit, cost);
  // Smaller boxes where these do not pack much more, else parts of fewer channels.
  while (BoxGrid{extent, sizes.windows}.boxes() * ceil_div(panels, sizes.panels) < kItems) {
    const PerAxis<int64_t> smaller = box_size(extent, sizes.panels, limit / 2, cost);
    const bool few = sizes.panels * lanes <= kFewLanes;
    if (limit > kFewBytes &&
        (few || packed_each(smaller, cost) < 1.2 * packed_each(sizes.windows, cost))) {
      limit /= 2;
      sizes.windows = smaller;
    } else if (sizes.panels > 1) {
      sizes.panels = even((sizes.panels + 1) / 2);
      sizes.windows = box_size(extent, sizes.panels, limit, cost);
    } else {
      break;
    }
  }
  return sizes;
}

}  // namespace convtbw::simd
