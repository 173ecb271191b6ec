// What a weights gradient's plan decides once (weights.h).
#include <algorithm>
#include <limits>

#include "backends/simd/plans.h"
#include "backends/simd/weights.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

// What the busiest of so many threads computes, in boxes: they take chunks of `chunk` boxes, which
// each of `parts` has.
int64_t most_boxes(int64_t threads, int64_t parts, int64_t boxes, int64_t chunk) {
  const int64_t whole = parts * (boxes / chunk), rest = boxes % chunk;
  const int64_t busiest = ceil_div(whole, threads) * chunk;
  if (whole % threads == 0) return busiest + ceil_div(rest > 0 ? parts : 0, threads) * rest;
  return std::max(busiest, ceil_div(parts * boxes, threads));
}

}  // namespace

WeightsPlan::WeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : all_(problem), problem_(one_slice(problem)), arithmetic_(arithmetic) {
  const Geometry& g = problem_.geometry;
  x_ = {g.x_channels, {&arithmetic, x_tensor(problem_), {}}, 0};
  y_ = {g.y_channels, {&arithmetic, y_tensor(problem_), {}}, 0};
  sliding_ = sliding_of(g);
  choose_roles();
  choose_sizes();
  kernel = std::string("wgrad, ") + (lanes_on_y_ ? "y" : "x") + " in lanes" +
           (taps_in_lanes_ ? ", taps of a channel in lanes"
            : joined_      ? ", taps joined with channels"
                           : "") +
           ", " + (all_.slices > 1 ? "slices, " : "") + arithmetic.name;
  bytes = static_cast<int64_t>(
      sizeof(WeightsPlan) + parts_.size() * sizeof(Part) + part_blocks_.size() * sizeof(PartBlock) +
      panels_.size() * sizeof(RowPanel) + blocks_.size() * sizeof(LaneBlock));
}

void WeightsPlan::choose_roles() {
  const Geometry& g = problem_.geometry;
  const int64_t lanes = arithmetic_.lanes;
  const int64_t taps = g.axes[2].k;
  const bool joinable = strip({sliding_[3]}, std::min<int64_t>(g.axes[2].y, 256), Apart::windows)
                            .footings.front()
                            .tap == 1;
  // Rate of a tile relative to the best, by its rows; then lanes that are used.
  const auto rate = [&](int64_t rows, int64_t lane_channels) {
    // One vector is loaded for every 8 products instead of 12, and fewer are a chain.
    const double one_vector = 0.85 * static_cast<double>(std::min<int64_t>(rows, 8)) / 8;
    const double by_rows = lane_channels <= lanes ? one_vector
                           : rows >= 4            ? 1
                           : rows == 3            ? 0.95
                           : rows == 2            ? 0.8
                                                  : 0.5;
    return by_rows * static_cast<double>(lane_channels) /
           static_cast<double>(ceil_div(lane_channels, lanes) * lanes);
  };
  // Sums of taps and channels are written in small pieces: of 25 to 256 pixels, 16 to 32 channels,
  // 1.1 to 3.5 times as long.
  const int64_t pixels = pixels_of_y(g);
  const bool many_pixels = pixels >= 128 * g.x_channels;
  // Lanes of taps and channels of x pay from here on. Time without over that with them, by the rate
  // gained (Zen 5, 8 and 16 lanes): 1.09 to 1.125 0.9 to 1.07, 1.14 1.16 (21 channels, 16x16), 1.2
  // to 1.25 1.1 to 1.5, 1.3 to 1.5 1.0 to 2.5.
  // Up to 8 channels, over rows of both: 1.07 to 1.1 1.04 to 1.12.
  const double gain = g.x_channels <= 8 && many_pixels ? 1.05 : 1.13;
  // Rows of taps and channels of x are whole tiles. Time without over that with them, 8 lanes, 16
  // (Zen 5): 4 to 8 channels 1.0 to 4.3, 1.0 to 3.7; 10 and 12 0.97 to 1.2, 1.0 to 2.6; 16 1.0 to
  // 1.15, 0.92 to 1.0; 20 to 32 1.0 to 1.13, 0.9 to 1.1.
  const int64_t most_joined = lanes > 8 ? 15 : 32;
  constexpr int64_t kMostRows = 256;  // of which each part of the sums has all
  joined_ = joinable && taps > 1 && g.x_channels <= most_joined &&
            (g.x_channels < 4 || (many_pixels && g.x_channels * taps <= kMostRows));
  const double on_y = rate(joined_ ? g.x_channels * taps : g.x_channels, g.y_channels);
  const double on_x = rate(g.y_channels, g.x_channels);
  // Of few pixels the weights are most of the work, and tiles write them at once where lanes are
  // neighbours in them. Time with other lanes over that with these, one tap, 64 to 2048 channels, 1
  // to 64 pixels, 16 and 8 lanes: 1.0 to 4, 1.0 to 1.7; of 128 0.8 to 1.06, of 196 0.92 to 1.1 (Zen
  // 5). A vector that is half empty is outweighed.
  constexpr int64_t kFewPixels = 64;
  const double writes = pixels <= kFewPixels ? 1.15 : 1;
  lanes_on_y_ = on_y * (problem_.w.y_channel == 1 ? writes : 1) >=
                on_x * (problem_.w.x_channel == 1 ? writes : 1);
  joined_ &= lanes_on_y_;
  // Time with x transposed over that of taps in lanes (Zen 3): 21 channels, 16x16 of stride 8, 1.2,
  // 64x64 of stride 32 2.1; 3 channels to 21 1.2.
  const bool whole_taps = taps_fill_lanes();
  if ((g.x_channels >= 4 || whole_taps) && joinable && taps > 1 && g.y_channels >= 4 &&
      rate(g.y_channels, g.x_channels * taps) >= gain * std::max(on_x, on_y)) {
    joined_ = true;
    lanes_on_y_ = false;
    taps_in_lanes_ = whole_taps;
  }
  row_taps_ = g.axes[0].k * g.axes[1].k * (joined_ ? 1 : taps);
  taps_inside_ =
      !joined_ && problem_.w.axes[inner_axis()] == 1 && lane_stride() != 1 && row_stride() != 1;

  const int64_t row_channels = lanes_on_y_ ? g.x_channels : g.y_channels;
  const int64_t lane_channels = lanes_on_y_ ? g.y_channels : g.x_channels * (joined_ ? taps : 1);
  // Whole vectors to copy, and a multiple of a good tile's height: 24 of 8 lanes are 4 tiles of 6,
  // 3 to 8 % better than 8 as 2 of 4; 16 of 16 lanes are 2 tiles of 8, or 6, 5 and 5.
  const int64_t good = arithmetic_.tiles.max_rows[2] < 8 ? 3 * lanes : lanes;
  // Not quite two panels are one: 21 of 16 lanes take 0.7 to 0.8 of the time, 32 of 8 lanes 0.9
  // to 1.
  const bool one_panel = row_channels > good && row_channels < 2 * good;
  pitch_ = joined_rows() ? row_channels : one_panel ? ceil_div(row_channels, 8) * 8 : good;
  for (int64_t c = 0; c < row_channels; c += pitch_) {
    const int64_t channels = std::min(pitch_, row_channels - c);
    panels_.push_back({c, channels, joined_rows() ? channels * taps : channels});
    max_panel_ = std::max(max_panel_, panels_.back().rows);
  }
  int vectors = best_vectors(arithmetic_, max_panel_);
  // Blocks do not reach from one channel to the next.
  while (taps_in_lanes_ && taps % (vectors * lanes) != 0) --vectors;
  blocks_ = lane_blocks(lane_channels, arithmetic_.lanes, vectors);
}

// Whether taps of one channel of x fill blocks of lanes, its pixels are neighbours, and those that
// tiles load together lie on one line of the cache.
bool WeightsPlan::taps_fill_lanes() const {
  // Of fewer windows at a time, because all channels are packed, tiles are met too often: 0.2 to
  // 0.7 of the speed.
  constexpr int64_t kMostPositions = 96 << 10, kWindows = 64;
  const auto& [depth, rows, row] = problem_.geometry.axes;
  const int64_t lanes = arithmetic_.lanes;
  return !arithmetic_.pairs && problem_.x.axes[2] == 1 && row.k % (2 * lanes) == 0 &&
         row.stride % lanes == 0 && row.stride <= kMostPositions &&
         depth.k * rows.k * kWindows * row.stride * x_.channels <= kMostPositions;
}

int64_t WeightsPlan::block_units(const Part& part, const LaneBlock& block) const {
  int64_t units = 0;
  for (int64_t i = part.first_panel; i < part.first_panel + part.panels; ++i)
    units += panel_units(panels_[i], block);
  return units;
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void WeightsPlan::choose_sizes() {
  const Geometry& g = problem_.geometry;
  // Of a part: 2 MB are 3 % slower on average and up to 11 %, 512 KB as fast (Zen 4).
  constexpr int64_t kSumBytes = 1 << 20;
  constexpr int64_t kPartialBytes = 8 << 20;  // of all chunks
  constexpr int64_t kItems = 16;              // enough to keep some threads busy until the end
  // Of a side: 256 KB are 5 % slower, 512 KB 1 %. Matrix registers multiply so fast that to read
  // and write the sums of a box counts: twice the pixels of most boxes 0.8 to 1.0 of the time.
  const int64_t kBufferBytes = (arithmetic_.matrices ? 1536 : 768) << 10;

  // Parts: halve the longer side until the sums are small.
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  const int64_t panels = static_cast<int64_t>(panels_.size());
  const int64_t block_lanes = best_vectors(arithmetic_, max_panel_) * arithmetic_.lanes;
  int64_t part_blocks = blocks, part_panels = panels;
  const auto part_bytes = [&] {
    return part_blocks * block_lanes * part_panels * std::max(pitch_, max_panel_) * row_taps_ *
           unit();
  };
  const auto parts = [&] {  // of all slices
    return ceil_div(blocks, part_blocks) * ceil_div(panels, part_panels) * g.groups * all_.slices;
  };
  const auto divisible = [&] { return part_blocks > 1 || part_panels > 1; };
  const auto halve = [&] {
    const bool lanes = part_blocks * block_lanes >= part_panels * pitch_ && part_blocks > 1;
    int64_t& longer = lanes || part_panels == 1 ? part_blocks : part_panels;
    longer = (longer + 1) / 2;
  };

  const auto y_channels = [&](int64_t some_blocks, int64_t some_panels) {
    return lanes_on_y_ ? some_blocks * block_lanes : some_panels * pitch_;
  };

  // Boxes: every box reads and writes the sums of a part once, and one box of all pixels needs
  // none: 512 pixels and up to 1024 where these are all instead of 128 and 256 take 4 to 12 % and
  // 15 to 30 % less time (one tap: 1024 take 15 % more than 256; Zen 4). Fewer where there are few
  // parts.
  const int64_t pixels = pixels_of_y(g);
  const int64_t least = row_taps_ >= 9 && pixels > 256 ? 128 : 256;
  int64_t limit = arithmetic_.matrices ? 1024 : row_taps_ == 1 ? 256 : pixels <= 1024 ? 1024 : 512;
  // Of joined taps there is little to sum, so that packing counts, and where boxes meet x is packed
  // twice: 0.95 of the time on average (780 weights gradients of 195 layers, Zen 4).
  if (joined_ && row_taps_ > 1)
    limit = std::clamp<int64_t>(kBufferBytes / (y_channels(blocks, panels) * unit()), limit, 2048);
  const PerAxis<int64_t> extent{g.batch, g.axes[0].y, g.axes[1].y, g.axes[2].y};
  const auto positions = [&](const PerAxis<int64_t>& windows) {
    int64_t product = 1;
    for (int a = 0; a < kBoxRank; ++a)
      product *= strip({sliding_[a]}, windows[a], Apart::windows).length;
    return product;
  };
  // Of a pixel, packed.
  const auto lane_units = [&](int64_t some_blocks) {
    return joined_lanes() ? x_.channels : some_blocks * block_lanes;
  };
  const auto box_size = [&] {
    const int64_t x_channels = lanes_on_y_ ? part_panels * pitch_ : lane_units(part_blocks);
    PerAxis<int64_t> size{1, 1, 1, 1};
    for (const int a : {3, 2, 1, 0})
      while (size[a] < extent[a]) {
        PerAxis<int64_t> next = size;
        const int64_t cuts = ceil_div(extent[a], size[a]);
        next[a] = cuts <= 1 ? extent[a] : ceil_div(extent[a], cuts - 1);
        if (a == 3) {
          next[a] = std::max(next[a], std::min<int64_t>(16, extent[a]));
          if (arithmetic_.pairs) next[a] = std::min(next[a] + next[a] % 2, extent[a]);
        }
        if (next[0] * next[1] * next[2] * next[3] > limit ||
            positions(next) * x_channels * unit() > kBufferBytes)
          break;
        size = next;
      }
    return size;
  };
  const auto large = [&] {
    return (grid_.boxes() > 1 && part_bytes() > kSumBytes) ||
           y_channels(part_blocks, part_panels) * std::min(limit, pixels) * unit() > kBufferBytes;
  };
  // Chunks of boxes, each with sums of its own, where there are few parts. More parts instead pack
  // the same pixels several times: only while that costs little (a copied element costs about as
  // much as 16 multiply-adds), or leaves threads without work.
  const auto cheap = [&] {
    const double rows = static_cast<double>(part_panels * pitch_);
    const double lanes = static_cast<double>(part_blocks * block_lanes);
    const double spread = static_cast<double>(x_.positions) / static_cast<double>(y_.positions);
    const double copied = lanes_on_y_
                              ? rows * spread + lanes
                              : rows + static_cast<double>(lane_units(part_blocks)) * spread;
    const double joined = joined_rows() ? static_cast<double>(sliding_[3].taps) : 1;
    const double cost = 16 * copied / (rows * lanes * static_cast<double>(row_taps_) * joined);
    return cost * std::min(1.0, static_cast<double>(parts() * chunks_) / kFewItems) < 0.05;
  };
  int64_t most_chunks = 1;
  for (;; limit /= 2) {
    part_blocks = blocks;
    part_panels = panels;
    grid_ = {extent, box_size()};
    while (large() && divisible()) {
      halve();
      grid_.size = box_size();
    }
    choose_packing();
    most_chunks =
        std::clamp<int64_t>(kPartialBytes / (part_bytes() * parts()), 1, ceil_div(kItems, parts()));
    chunks_ = std::min(most_chunks, grid_.boxes());
    while (parts() * chunks_ < kItems && divisible() && cheap()) halve();
    if (parts() * grid_.boxes() >= kFewItems || limit <= least) break;
  }
  choose_chunks(parts(), most_chunks);
  join_packing();
  chunks_ = ceil_div(grid_.boxes(), boxes_per_chunk_);
  list_parts(part_blocks, part_panels);
}

// Parts of at most so many blocks and panels, and the memory that they take.
void WeightsPlan::list_parts(int64_t most_blocks, int64_t most_panels) {
  const int64_t groups = problem_.geometry.groups, boxes = grid_.boxes();
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  const int64_t panels = static_cast<int64_t>(panels_.size());
  int64_t row_units = 0, most_lane_units = 0, largest_panel = 0;  // of a part
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t block = 0; block < blocks; block += most_blocks)
      for (int64_t panel = 0; panel < panels; panel += most_panels) {
        Part part{group,
                  block,
                  std::min(most_blocks, blocks - block),
                  panel,
                  std::min(most_panels, panels - panel),
                  0};
        int64_t part_lane_units = 0;
        for (int64_t i = block; i < block + part.blocks; ++i) {
          part_blocks_.push_back({static_cast<int64_t>(parts_.size()), i - block, part.units});
          part.units += block_units(part, blocks_[i]);
          part_lane_units +=
              panel_step(lane_side(), int64_t{blocks_[i].vectors} * arithmetic_.lanes);
          for (int64_t p = panel; p < panel + part.panels; ++p)
            largest_panel = std::max(largest_panel, panel_units(panels_[p], blocks_[i]));
        }
        part_units_ = std::max(part_units_, part.units);
        row_units = std::max(row_units, part.panels * panel_step(row_side(), pitch_));
        most_lane_units = std::max(most_lane_units, part_lane_units);
        parts_.push_back(part);
      }
  run_bytes_ = whole_lines(run_lists_ * run_count_ * int64_t{sizeof(Run)});
  row_buffer_bytes_ = whole_lines(row_units * unit());
  // Joined lanes are read up to a block behind the last ones.
  const int64_t behind = kMaxVectors * arithmetic_.lanes;
  if (joined_lanes())
    most_lane_units = x_.channels * (taps_in_lanes_ ? x_channel_ : x_.positions) + behind;
  buffer_bytes_ = run_bytes_ + row_buffer_bytes_ + whole_lines(most_lane_units * unit());
  // Sums of parts are their thread's, those of chunks are kept until all are there.
  keeps_sums_ = boxes > 1;
  writes_weights_ =
      !keeps_sums_ && !joined_ && lane_stride() == 1 && problem_.epilogue == Epilogue::overwrite;
  const int64_t sums = writes_weights_ ? 0
                       : !keeps_sums_  ? largest_panel
                       : chunks_ > 1   ? 0
                                       : part_units_;
  local_bytes_ = buffer_bytes_ + sums * unit();
  const int64_t all_parts = static_cast<int64_t>(parts_.size()) * all_.slices;
  workspace = problem_.threads * local_bytes_ +
              (chunks_ > 1 ? part_units_ * unit() * chunks_ * all_parts : 0);
}

// Boxes and chunks whose threads, of two and of four, end at about the same time. With the fewest
// boxes instead, and the smallest chunks of them, 60 random layers took up to 1.18 times as long,
// once 0.97; one tap of 1089 pixels 1.16, of 8x56x56 and 2x56x56 1.05 (Zen 5, two threads).
void WeightsPlan::choose_chunks(int64_t parts, int64_t most_chunks) {
  boxes_per_chunk_ = ceil_div(grid_.boxes(), chunks_);
  if (chunks_ == 1) return;
  // The axis that is cut, others have one window or all.
  int axis = kBoxRank - 1;
  while (axis > 0 && grid_.size[axis] == grid_.extent[axis]) --axis;
  const int64_t extent = grid_.extent[axis], cuts = ceil_div(extent, grid_.size[axis]);
  // The sums of a box are read and written, which takes as long as so many pixels. More cuts and
  // boxes of a chunk than this change little.
  constexpr int64_t kSumsPixels = 8, kMoreCuts = 8, kMoreBoxes = 32;
  double least = std::numeric_limits<double>::infinity();
  int64_t best_windows = grid_.size[axis];
  const int64_t most_cuts = std::min({extent, cuts + cuts / 2, cuts + kMoreCuts});
  for (int64_t some_cuts = cuts; some_cuts <= most_cuts; ++some_cuts) {
    BoxGrid grid = grid_;
    int64_t& windows = grid.size[axis] = ceil_div(extent, some_cuts);
    if (axis == 3 && arithmetic_.pairs) windows = std::min(windows + windows % 2, extent);
    const int64_t boxes = grid.boxes(), smallest = ceil_div(boxes, most_chunks);
    const int64_t pixels = grid.size[0] * grid.size[1] * grid.size[2] * grid.size[3];
    const int64_t largest = std::min({boxes - 1, 2 * smallest, smallest + kMoreBoxes});
    for (int64_t chunk = smallest; chunk <= largest; ++chunk) {
      const auto time =
          static_cast<double>((pixels + kSumsPixels) * (most_boxes(2, parts, boxes, chunk) +
                                                        2 * most_boxes(4, parts, boxes, chunk)));
      if (time < 0.98 * least) {
        least = time;
        best_windows = windows;
        boxes_per_chunk_ = chunk;
      }
    }
  }
  grid_.size[axis] = best_windows;
  choose_packing();
}

// How the boxes of both sides are packed.
void WeightsPlan::choose_packing() {
  const PerAxis<int64_t>& size = grid_.size;
  for (int a = 0; a < kBoxRank; ++a) {
    x_.packing.strips[a] = strip({sliding_[a]}, size[a], Apart::windows);
    y_.packing.strips[a] = strip({Sliding{}}, size[a], Apart::windows);
  }
  steps_ = arithmetic_.pairs ? 2 : 1;
  if (arithmetic_.pairs) {
    x_.packing.pairing = y_.packing.pairing = Pairing::positions;
    x_.packing.pair_step = sliding_[3].stride;
    y_.packing.pair_step = 1;
    y_.packing.strips[3] = strip({{1, 0, 2, 1}}, ceil_div(size[3], 2), Apart::windows);
    Strip& row = x_.packing.strips[3];
    const Comb& comb = row.combs.front();
    if (grid_.extent[3] % 2) {
      const bool apart = row.combs.size() > 1;
      x_.packing.last_window = {row.length, 1,
                                comb.from,  apart ? sliding_[3].dilation : comb.from_step,
                                0,          (sliding_[3].taps - 1) * row.footings[0].tap};
      row.length += x_.packing.last_window->extra + 1;
    }
  }
  for (Side* side : {&x_, &y_}) {
    side->positions = 1;
    for (const Strip& strip : side->packing.strips) side->positions *= strip.length;
  }
  lay_out_by_tap();
  x_channel_ = odd_lines(x_.positions);
}

// Where windows share no positions of an axis, those of a tap lie side by side: along the last
// axis, and over all of them, so that the windows of a box are one run, whose steps are neighbours.
// 2x2 of stride 2 from 512 to 256 channels, 64x64, 0.91 to 0.95 of the time, 16x16x16 of 128 to 64
// 0.92 to 1; either of the two alone 1 to 1.03 (Zen 3). Not with 16 lanes: 1 to 1.3, 1.05 in the
// mean (Zen 5).
void WeightsPlan::lay_out_by_tap() {
  const PerAxis<int64_t>& size = grid_.size;
  Packing& packing = x_.packing;
  const Sliding& row = sliding_[3];
  // Channels first, positions are neighbours: they are dealt to their taps, all of them.
  const bool dealt = packing.tensor.channel != 1;
  const bool dealable =
      packing.tensor.stride[3] == 1 && row.dilation == 1 && row.taps == row.stride;
  PerAxis<bool> by_tap;
  int64_t positions = 1;  // of one tap
  for (int a = 0; a < kBoxRank; ++a) {
    const int64_t taps = sliding_[a].taps, length = packing.strips[a].length;
    by_tap[a] = taps > 1 && length == size[a] * taps;
    positions *= by_tap[a] ? size[a] : length;
  }
  packing.deals = false;
  if (joined_ || arithmetic_.pairs || arithmetic_.lanes > 8 || (dealt && !dealable) || !by_tap[3])
    return;
  packing.deals = dealt;
  int64_t inner = 1;
  for (int a = kBoxRank - 1; a > 0; --a) {
    if (by_tap[a]) {
      const Sliding& sliding = sliding_[a];
      const int64_t tap = positions / inner;
      Strip strip{size[a], sliding.stride, {}, {{0, 1, tap}}};
      for (int64_t t = 0; t < sliding.taps; ++t)
        strip.combs.push_back(
            {t * tap, 1, sliding.first + t * sliding.dilation, sliding.stride, 1, 0});
      packing.strips[a] = strip;
      positions *= sliding.taps;
    }
    inner *= packing.strips[a].length;
  }
}

void WeightsPlan::join_packing() {
  const PerAxis<int64_t>& size = grid_.size;
  x_strips_ = x_.packing.strips;
  y_strips_ = y_.packing.strips;
  join_rows(x_.packing, grid_);
  join_rows(y_.packing, grid_);
  // At the border every tap has runs of its own, unless those of very large kernels took too much
  // room.
  constexpr int64_t kRunBytes = 64 << 10;
  // With pairs a row may end with an odd window.
  run_count_ =
      size[0] * size[1] * size[2] * (ceil_div(size[3] / steps_, most_steps()) + steps_ - 1);
  run_lists_ = row_taps_ * run_count_ * int64_t{sizeof(Run)} <= kRunBytes ? row_taps_ : 1;
}

std::unique_ptr<const Plan> weights_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<WeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
