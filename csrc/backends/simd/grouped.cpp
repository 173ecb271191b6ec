#include "backends/simd/grouped.h"

#include <algorithm>
#include <limits>

#include "core/group_vectors.h"

namespace convtbw::simd {

LaneOrder spread_order(const Geometry& g, Role lane_role) {
  const bool lanes_on_y = lane_role == Role::y;
  const int64_t lanes = lanes_on_y ? g.y_channels : g.x_channels;
  return {g.groups * lanes, lanes, lanes_on_y ? g.x_channels : g.y_channels};
}

Spreading spreading_of(const Problem& problem, const LaneOrder& order, const Arithmetic& arithmetic,
                       int64_t row) {
  // Pixels are the only sums of a vector: fewer do not hide the latency of a multiply-add.
  constexpr int64_t kLeastPixels = 5;
  if (!order.spread() || !arithmetic.spreading_in_registers.row[0]) return Spreading::in_memory;
  if (order.group_lanes % arithmetic.lanes == 0 && row >= kLeastPixels)
    return Spreading::by_broadcast;
  return groups_share_vectors(problem, arithmetic.lanes) ? Spreading::in_registers
                                                         : Spreading::in_memory;
}

const SpreadingKernels* spreading_kernels(Spreading spreading, const Arithmetic& arithmetic) {
  if (spreading == Spreading::in_memory) return nullptr;
  return spreading == Spreading::in_registers ? &arithmetic.spreading_in_registers
                                              : &arithmetic.spreading_by_broadcast;
}

const char* in_words(Spreading spreading) {
  if (spreading == Spreading::in_memory) return "";
  return spreading == Spreading::in_registers ? "spread in registers, " : "broadcast, ";
}

// Times in place over those of a copy with zeros: 7x7 with k7 1.5 to 2.7; by broadcast, whose sums
// are of one vector, 7x7 and 14x14 with k3 and k5 1.0 to 1.3, 28x28 0.95 to 1.05, 16x16 of dilation
// 4 1.15 and 1.4.
LeastRegions least_regions_in_place(Spreading spreading, double alike) {
  if (spreading == Spreading::by_broadcast) return {0.8, std::numeric_limits<double>::infinity()};
  return {0.25, alike};
}

bool many_regions(const Tensor& tensor, const std::vector<Sliding>& ways) {
  constexpr int64_t kLongRow = 28, kManyTaps = 5;
  return tensor.extent[3] > kLongRow &&
         std::ranges::any_of(ways, [](const Sliding& s) { return s.taps >= kManyTaps; });
}

namespace {

// Whether zeros should be copied (LeastRegions). Not where they would be most of what is
// multiplied: dgrad of 22 taps of one row of windows, of which a result meets one, took 3.2 times
// as long with them (Zen 4).
bool mostly_cut(const Tensor& tensor, const PerAxis<std::vector<Sliding>>& ways,
                const PerAxis<int64_t>& windows, const LeastRegions& least) {
  constexpr double kFewPresent = 0.25, kMostPresent = 0.9;  // of all taps of all windows
  double whole = 1, present = 1, alike = 1;
  for (int a = 1; a < kBoxRank; ++a) {
    if (ways[a].empty()) continue;
    const Sliding& s = ways[a].front();
    const auto count = static_cast<double>(windows[a]);
    double uncut = 0, taps = 0, regions = 0;
    for_each_edge(s, tensor.extent[a], {0, windows[a]}, [&](const Range& range, const Range& met) {
      const auto length = static_cast<double>(range.end - range.begin);
      const int64_t met_taps = met.end - met.begin;
      if (met_taps == s.taps) uncut += length;
      taps += length * static_cast<double>(met_taps);
      ++regions;
    });
    whole *= uncut / count;
    present *= taps / (count * static_cast<double>(s.taps));
    alike *= count / regions;
  }
  return whole < least.whole && present >= kFewPresent &&
         (present > kMostPresent || alike < least.alike);
}

}  // namespace

LaneSide::LaneSide(const Arithmetic& arithmetic, const Tensor& tensor, const LaneOrder& order,
                   Spreading spreading, const PerAxis<std::vector<Sliding>>& ways,
                   const PerAxis<int64_t>& windows, bool in_place, const LeastRegions& least,
                   const Arithmetic* keeping)
    : arithmetic_(arithmetic),
      order_(order),
      spreads_(order.spread() && spreading == Spreading::in_memory),
      plane_(order.spread() && spreading == Spreading::by_broadcast ? 1 : 0),
      ways_(ways),
      padded_(mostly_cut(tensor, ways, windows, least)),
      in_place_(in_place && !padded_ && !spreads_ && tensor.channel == 1 &&
                order.lanes >= arithmetic.lanes),
      packing_{keeping ? keeping : &arithmetic, tensor, {}, Pairing::none, keeping != nullptr},
      parts_{order.lanes, arithmetic.lanes} {}

PerAxis<Strip> LaneSide::strips_of(const PerAxis<int64_t>& windows) const {
  PerAxis<Strip> strips;
  for (int a = 0; a < kBoxRank; ++a) strips[a] = strip(ways_[a], windows[a], Apart::windows);
  return strips;
}

int64_t LaneSide::positions_of(const PerAxis<int64_t>& windows) const {
  int64_t product = 1;
  for (const Strip& strip : strips_of(windows)) product *= strip.length;
  return product;
}

// Of any part.
int64_t LaneSide::most_channels(const LaneParts& parts) const {
  const int64_t lanes = parts.most_lanes(), group = order_.group_lanes;
  if (parts.part_vectors * parts.width % group == 0) return ceil_div(lanes, group) * order_.planes;
  // Wherever a part begins in a group, it meets at most so many.
  return std::min((lanes + group - 2) / group + 1, order_.lanes / group) * order_.planes;
}

// Units from one position to the next of the other side's channels before they are spread.
int64_t LaneSide::staging_pitch(const LaneParts& parts) const {
  return stages() ? ceil_div(most_channels(parts), parts.width) * parts.width : 0;
}

// And as kernels read them.
int64_t LaneSide::pitch(const LaneParts& parts) const {
  return spreads_ ? parts.pitch()
                  : odd_lines(ceil_div(most_channels(parts), parts.width) * parts.width);
}

int64_t LaneSide::units_of(const PerAxis<int64_t>& windows, const LaneParts& parts) const {
  return positions_of(windows) * (planes() * pitch(parts) + staging_pitch(parts));
}

LaneParts::Range LaneSide::channels_of(const LaneParts::Range& lanes) const {
  if (!order_.spread()) return lanes;
  const int64_t begin = order_.first_channel(lanes.begin);
  return {begin, order_.first_channel(lanes.begin + lanes.count - 1) + order_.planes - begin};
}

void LaneSide::set_sizes(const PerAxis<int64_t>& windows, const LaneParts& parts) {
  parts_ = parts;
  positions_ = positions_of(windows);
  PerAxis<Strip>& strips = packing_.strips;
  strips = strips_of(windows);
  // A tensor's own positions, in its order and without gaps, or else those that taps meet.
  for (const Strip& strip : strips)
    for (const Comb& comb : strip.combs) padded_ |= strip.combs.size() > 1 || comb.from_step != 1;
  padded_ &= !in_place_;
  if (!padded_)
    for (int a = 0; a < kBoxRank; ++a) {
      strips[a].footings.clear();
      for (const Sliding& s : ways_[a])
        strips[a].footings.push_back({s.first, s.stride, s.dilation});
    }
  const int64_t lanes = parts.width;
  if (!in_place_) memory_units_ = units_of(windows, parts) + (stages() ? lanes : 0);
  if (!spreads_) return;
  for (int64_t part = 0; part < parts.count(); ++part) {
    const LaneParts::Range range = parts.part(part);
    for (int64_t vector = 0; vector < parts.part_vectors + 1; ++vector) {
      const int64_t first = parts.lane(range, vector);
      for (int64_t i = 0; i < lanes; ++i) {
        const int64_t lane = std::min(first + i, range.count - 1);
        indices_.push_back(static_cast<int32_t>(order_.first_channel(range.begin + lane) -
                                                order_.first_channel(range.begin + first)));
      }
    }
  }
}

// f(where rows begin in the tensor, in elements, and in memory, their positions) for what a box
// meets of it, in its order and without gaps. Rows that follow each other there are one.
template <class F>
LaneView LaneSide::for_each_met_row(const BoxRange& box, int64_t pitch, char* memory,
                                    const F& f) const {
  const Tensor& tensor = packing_.tensor;
  const PerAxis<Strip>& strips = packing_.strips;
  LaneView view{memory, {}, {}, plane_};
  view.stride[3] = pitch;
  BoxRange positions;
  for (int a = 0; a < kBoxRank; ++a) {
    if (strips[a].combs.empty()) return view;  // nothing is met
    const Comb& comb = strips[a].combs.front();
    const int64_t begin = box.begin[a] * strips[a].stride + comb.from;
    positions.begin[a] = std::max<int64_t>(0, begin);
    positions.count[a] =
        std::min(tensor.extent[a], begin + comb.length(box.count[a])) - positions.begin[a];
  }
  if (positions.empty()) return view;
  for (int a = kBoxRank - 2; a >= 0; --a)
    view.stride[a] = view.stride[a + 1] * positions.count[a + 1];
  view.data -= offset(positions.begin, view.stride) * unit();
  int64_t joined = positions.count[3];
  BoxRange rows = positions;
  for (int a = kBoxRank - 2; a >= 0 && tensor.stride[a] == joined * tensor.stride[3]; --a) {
    joined *= rows.count[a];
    rows.count[a] = 1;
  }
  for_each_row(rows, [&](const PerAxis<int64_t>& p) {
    f(offset(p, tensor.stride), const_cast<char*>(view.data) + offset(p, view.stride) * unit(),
      joined);
  });
  return view;
}

// Positions by pitch units.
LaneView LaneSide::pack(const void* data, const BoxRange& box, const LaneParts::Range& channels,
                        int64_t pitch, char* memory) const {
  const Tensor& tensor = packing_.tensor;
  const PerAxis<Strip>& strips = packing_.strips;
  const int64_t zeros = std::max<int64_t>(0, arithmetic_.lanes - channels.count);
  if (padded_) {
    LaneView view{memory, {}, box.begin, plane_};
    view.stride[3] = pitch;
    for (int a = kBoxRank - 2; a >= 0; --a)
      view.stride[a] = view.stride[a + 1] * strips[a + 1].length;
    const Panel panel{channels.begin, channels.count, 0, view.stride[2], pitch, 1, zeros};
    pack_box(packing_, data, box, &panel, 1, memory);
    return view;
  }
  const char* const from = static_cast<const char*>(data);
  return for_each_met_row(box, pitch, memory, [&](int64_t row, char* to, int64_t positions) {
    packing_.copy()({from + (row + channels.begin * tensor.channel) * element_bytes(tensor.dtype),
                     tensor.stride[3], tensor.channel, to, pitch, 1, positions, channels.count,
                     zeros});
  });
}

BoxPrefetch LaneSide::prefetch(const void* data, const BoxRange& box, int64_t part,
                               int64_t steps) const {
  if (in_place_) return {};
  const LaneParts::Range channels = channels_of(parts_.part(part));
  return {packing_, data, box, channels.begin, channels.count, steps};
}

LaneView LaneSide::view(const void* data, const BoxRange& box, int64_t part, char* memory) const {
  const LaneParts::Range range = parts_.part(part);
  if (in_place_)
    return {static_cast<const char*>(data) + channels_of(range).begin * element_bytes(dtype()),
            packing_.tensor.stride,
            {},
            plane_};
  const int64_t pitch = this->pitch(parts_), plane = positions_ * pitch;
  if (!spreads_) return pack(data, box, channels_of(range), pitch, memory);
  const Tensor& tensor = packing_.tensor;
  const int64_t channel = channels_of(range).begin;
  if (!stages()) {
    // Of all the tensor.
    int64_t elements = order_.lanes / order_.group_lanes * order_.planes;
    for (int a = 0; a < kBoxRank; ++a) elements += (tensor.extent[a] - 1) * tensor.stride[a];
    LaneView view =
        for_each_met_row(box, pitch, memory, [&](int64_t row, char* to, int64_t positions) {
          const int64_t first = row + channel;
          spread({static_cast<const char*>(data) + first * element_bytes(tensor.dtype),
                  tensor.stride[3], elements - first, nullptr, to, pitch, plane, order_.planes,
                  positions},
                 tensor.dtype, part);
        });
    view.plane = plane;
    return view;
  }
  const int64_t staging_units = staging_pitch(parts_);
  char* const staging = memory + order_.planes * plane * unit();
  LaneView view = pack(data, box, channels_of(range), staging_units, staging);
  spread({staging, staging_units, positions_ * staging_units + parts_.width, nullptr, memory, pitch,
          plane, order_.planes, positions_},
         sum_dtype(tensor.dtype), part);
  for (int64_t& stride : view.stride) stride = stride / staging_units * pitch;
  view.data = memory + (view.data - staging) / staging_units * pitch;
  view.plane = plane;
  return view;
}

// Of all vectors of a part, from its first channel and to its first lane.
void LaneSide::spread(const Spread& all, Dtype dtype, int64_t part) const {
  // So few positions at a time that they stay in the first-level cache: vectors are halves of its
  // lines, and every plane reads the same channels (groups of 4, AVX2: 0.87 of the time).
  constexpr int64_t kBytes = 16 << 10;
  const LaneParts::Range range = parts_.part(part);
  const int64_t bytes =
      most_channels(parts_) * element_bytes(dtype) + all.planes * all.to_step * unit();
  const int64_t most = std::max<int64_t>(8, kBytes / bytes);
  Spread some = all;
  for (int64_t first = 0; first < all.positions; first += most)
    for (int64_t vector = 0; vector * parts_.width < range.count; ++vector) {
      const int64_t lane = parts_.lane(range, vector);
      const int64_t channel =
          order_.first_channel(range.begin + lane) - order_.first_channel(range.begin);
      const int64_t from = first * all.from_step + channel, to = first * all.to_step + lane;
      some.from = static_cast<const char*>(all.from) + from * element_bytes(dtype);
      some.readable = all.readable - from;
      some.index = &indices_[(part * (parts_.part_vectors + 1) + vector) * parts_.width];
      some.to = static_cast<char*>(all.to) + to * unit();
      some.positions = std::min(most, all.positions - first);
      arithmetic_.spread[static_cast<int>(dtype)](some);
    }
}

int64_t list_ahead(const PerAxis<Footing>& footings, const LaneView& view, const Region& region,
                   int64_t lines, int64_t* ahead) {
  const int64_t rows = std::min(footings[2].window, region.taps[2]);
  const int64_t columns = std::min(footings[3].window, region.taps[3]);
  if (rows * columns > std::min(kMaxAhead, region.taps[1] * region.taps[2] * region.taps[3]))
    return 0;
  int64_t last = view.stride[2] == 0 ? kAheadPixels * footings[3].window * view.stride[3]
                                     : lines * footings[2].window * view.stride[2];
  for (int a = 1; a < kBoxRank; ++a)
    last += (region.tap[a] + region.taps[a] - 1) * footings[a].tap * view.stride[a];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      *ahead++ = last - row * view.stride[2] - column * view.stride[3];
  return rows * columns;
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

constexpr double kItemWindows = 32 << 10;

// The box of windows that packs least for each window within a limit of bytes; of at least so many
// images if these are whole.
PerAxis<int64_t> box_size(const PerAxis<int64_t>& extent, const LaneParts& parts, int64_t limit,
                          const BoxCost& cost, int64_t least_images) {
  // Rows that are short anyway are not cut: 7x7 under 5x5 0.4 (wgrad) and 0.6 of the time.
  constexpr int64_t kShortRow = 32;
  PerAxis<int64_t> size{1, 1, 1, ceil_div(extent[3], ceil_div(extent[3], kShortRow))};
  while (size[3] > 1 && cost.bytes(size, parts) > limit) size[3] = ceil_div(size[3], 2);
  const int64_t images = std::min(least_images, extent[0]);
  if (cost.bytes({images, extent[1], extent[2], extent[3]}, parts) <= limit) size[0] = images;
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
      if (cost.bytes(next, parts) > limit) continue;
      const double packed = packed_each(next, cost);
      if (best == size || packed < least) {
        best = next;
        least = packed;
      }
      if (a == kBoxRank - 1 && cost.bytes(next, parts) < limit / 2) break;  // long rows first
    }
    if (best == size) return size;
    size = best;
  }
}

int64_t even_part(const LaneParts& parts, int64_t lanes) {
  const int64_t vectors = parts.vectors(), most = std::max<int64_t>(1, lanes / parts.width);
  return ceil_div(vectors, ceil_div(vectors, most));
}

}  // namespace

// Nothing is packed: whole rows, some more or less of them, of fewer lanes where images are few and
// small.
PartSizes in_place_sizes(const PerAxis<int64_t>& extent, LaneParts parts, int64_t most_lanes,
                         int64_t slices, int64_t least_images) {
  const PerAxis<int64_t> least{least_images, 1, 4, 64};
  const int64_t wanted = item_count(extent, parts.lanes * slices, kItemWindows);
  parts.part_vectors = even_part(parts, most_lanes);
  PartSizes sizes{parts, extent};
  const auto items = [&] {
    return BoxGrid{extent, sizes.windows}.boxes() * parts.count() * slices;
  };
  for (int a = 0; a < kBoxRank; ++a) {
    const int64_t pieces = std::min(ceil_div(wanted, items()), extent[a]);
    sizes.windows[a] = std::max(std::min(least[a], extent[a]), extent[a] / pieces);
  }
  if (items() < kFewItems && most_lanes > kManyLanes)
    return in_place_sizes(extent, parts, most_lanes / 2, slices, least_images);
  return sizes;
}

PartSizes part_sizes(const PerAxis<int64_t>& extent, LaneParts parts, int64_t planes,
                     bool channels_contiguous, const BoxCost& cost, int64_t slices,
                     int64_t least_images) {
  // Half of a second-level cache. 200 to 800 KB are within 10 % of each other (Zen 4).
  constexpr int64_t kBytes = 384 << 10, kFewBytes = 24 << 10;
  // Channels in long pieces (kManyLanes) do not pay where they are spread: planes of 16 lanes
  // instead of 128 take 0.90 to 0.97 of the time.
  // Where pixels are contiguous, many channels at once pay while rows are so short that each costs
  // as much as its pixels: 64 instead of 8 take 0.61 of the time of 14x14, 1.4 of that of 112x112
  // (3x3). Otherwise a cache line: 16 instead of 8 take 0.82 to 0.97.
  constexpr int64_t kFewLanes = 64, kLineLanes = 16, kSmallImage = 28 * 28;
  constexpr int64_t kVeryFew = 4;  // items: until there are so many, boxes may pack much more

  const int64_t lanes = parts.width;
  const bool small = extent[1] * extent[2] * extent[3] <= kSmallImage;
  const int64_t part_lanes = channels_contiguous && planes == 1 ? kManyLanes
                             : !channels_contiguous && small    ? kFewLanes
                                                                : kLineLanes;
  PartSizes sizes{parts, {}};
  int64_t &part_vectors = sizes.parts.part_vectors, limit = kBytes;
  const auto box = [&](int64_t bytes) {
    return box_size(extent, sizes.parts, bytes, cost, least_images);
  };
  const auto items = [&] {
    return BoxGrid{extent, sizes.windows}.boxes() * sizes.parts.count() * slices;
  };
  const auto set_lanes = [&](int64_t count) {
    part_vectors = even_part(parts, count);
    sizes.windows = box(limit);
    return packed_each(sizes.windows, cost);
  };
  // Of many channels few large windows fit, which share little of what is packed: 27x27 to 31x31
  // took 10 times as long with 128 and more, in boxes of one window.
  const double packed_of_line = set_lanes(kLineLanes);
  for (int64_t count = part_lanes; set_lanes(count) > 2 * packed_of_line; count /= 2) continue;
  const double packed_at_first = packed_each(sizes.windows, cost);
  const int64_t wanted = item_count(extent, parts.lanes * slices, kItemWindows);
  // Where pixels are contiguous, parts of fewer channels before smaller boxes, which pack more. The
  // other way round, and always in 32 items, 1 to 16 images of 7x7 to 28x28 took 1.0 to 2.5 times
  // as long, 1.15 in the mean, rows cut into pieces most (Zen 5, 8 and 16 lanes, 3x3 to 7x7).
  while (items() < wanted) {
    const PerAxis<int64_t> smaller = box(limit / 2);
    const bool narrow = part_vectors * lanes <= kLineLanes;
    const double most = channels_contiguous  ? 1.2 * packed_each(sizes.windows, cost)
                        : items() < kVeryFew ? 3 * packed_at_first
                                             : 1.5 * packed_at_first;
    const bool gains = limit > kFewBytes && packed_each(smaller, cost) < most &&
                       smaller[0] >= std::min(least_images, sizes.windows[0]);
    if (gains && (narrow || channels_contiguous)) {
      limit /= 2;
      sizes.windows = smaller;
    } else if (!narrow) {
      part_vectors = even_part(parts, (part_vectors + 1) / 2 * lanes);
      limit /= 2;  // the same windows
      sizes.windows = box(limit);
    } else {
      break;
    }
  }
  return sizes;
}

}  // namespace convtbw::simd
