// wgrad with at least a few channels on either side: an implicit GEMM that sums over pixels. Its
// rows are channels of one side, its lanes channels of the other, and every tap has tiles of its
// own: they differ only in where they begin in x. Both sides are packed, box of pixels by box, into
// panels as wide as the tile's sides.
//
// Where x has so few channels that they cannot fill a tile's rows, the taps of the last axis join
// them: pixels and channels of x are contiguous, so rows run over both.
#include <algorithm>

#include "backends/simd/box.h"
#include "backends/simd/box_prefetch.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

// A range of the other side's channels, packed side by side.
struct RowPanel {
  int64_t channel, channels;
  int64_t rows;  // channels, or channels * taps of the last axis where these are joined
};

class WeightsPlan : public Plan {
 public:
  WeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
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

  // A block of lanes of a part, and where its sums lie among the part's.
  struct PartBlock {
    int64_t part, block, offset;
  };

  void choose_roles();
  void choose_sizes();
  void run_boxes(const Operands& operands, const Part& part, int64_t first_box, int64_t boxes,
                 char* sums, char* memory) const;
  void finish(const Operands& operands, const Part& part, int64_t block, char* sums) const;
  int64_t block_units(const Part& part, const LaneBlock& block) const;
  bool meets_padding(const BoxRange& box) const;
  BoxRange windows_of_tap(const BoxRange& box, const PerAxis<int64_t>& tap) const;
  int64_t fill_runs(const BoxRange& box, const BoxRange& windows, int64_t width, Run* runs) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  bool lanes_on_y_, joined_;
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
  int64_t part_units_ = 0, row_buffer_units_, lane_buffer_units_;
  int64_t run_count_, run_lists_;
  int64_t buffer_bytes_, local_bytes_;
};

WeightsPlan::WeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem), arithmetic_(arithmetic) {
  const Geometry& g = problem.geometry;
  x_ = {g.x_channels, {&arithmetic, x_tensor(problem), {}}, 0};
  y_ = {g.y_channels, {&arithmetic, y_tensor(problem), {}}, 0};
  for (int a = 0; a < kMaxRank; ++a)
    sliding_[a + 1] = {g.axes[a].k, -g.axes[a].pad, g.axes[a].stride, g.axes[a].dilation};
  choose_roles();
  choose_sizes();
  kernel = std::string("wgrad, ") + (lanes_on_y_ ? "y" : "x") + " in lanes" +
           (joined_ ? ", taps joined with channels" : "") + ", " + arithmetic.name;
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
    const double by_rows = rows >= 4 ? 1 : rows == 3 ? 0.95 : rows == 2 ? 0.8 : 0.5;
    return by_rows * static_cast<double>(lane_channels) /
           static_cast<double>(ceil_div(lane_channels, lanes) * lanes);
  };
  joined_ = g.x_channels < 4 && joinable && taps > 1;
  const double on_y = rate(joined_ ? g.x_channels * taps : g.x_channels, g.y_channels);
  lanes_on_y_ = on_y >= rate(g.y_channels, g.x_channels);
  joined_ &= lanes_on_y_;
  row_taps_ = g.axes[0].k * g.axes[1].k * (joined_ ? 1 : taps);

  const int64_t row_channels = lanes_on_y_ ? g.x_channels : g.y_channels;
  const int64_t lane_channels = lanes_on_y_ ? g.y_channels : g.x_channels;
  // Whole vectors to copy, and a multiple of a good tile's height: 24 of 8 lanes are 4 tiles of 6,
  // 3 to 8 % better than 8 as 2 of 4; 16 of 16 lanes are 2 tiles of 8 (Zen 4).
  const int64_t good = arithmetic_.tiles.max_rows[2] < 8 ? 3 * lanes : lanes;
  // Not quite two panels are one: 21 of 16 lanes take 0.7 to 0.8 of the time, 32 of 8 lanes 0.9
  // to 1.
  const bool one_panel = row_channels > good && row_channels < 2 * good;
  pitch_ = joined_ ? row_channels : one_panel ? ceil_div(row_channels, 8) * 8 : good;
  for (int64_t c = 0; c < row_channels; c += pitch_) {
    const int64_t channels = std::min(pitch_, row_channels - c);
    panels_.push_back({c, channels, joined_ ? channels * taps : channels});
    max_panel_ = std::max(max_panel_, panels_.back().rows);
  }
  blocks_ = lane_blocks(lane_channels, arithmetic_.lanes, max_panel_ < 4);
}

int64_t WeightsPlan::block_units(const Part& part, const LaneBlock& block) const {
  int64_t rows = 0;
  for (int64_t i = part.first_panel; i < part.first_panel + part.panels; ++i)
    rows += panels_[i].rows;
  return rows * row_taps_ * block.vectors * arithmetic_.lanes;
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void WeightsPlan::choose_sizes() {
  const Geometry& g = problem_.geometry;
  // Of a part: 2 MB are 3 % slower on average and up to 11 %, 512 KB as fast (Zen 4).
  constexpr int64_t kSumBytes = 1 << 20;
  constexpr int64_t kPartialBytes = 8 << 20;   // of all chunks
  constexpr int64_t kItems = 16;               // enough to keep some threads busy until the end
  constexpr int64_t kBufferBytes = 768 << 10;  // of x: 256 KB are 5 % slower, 512 KB 1 %

  // Parts: halve the longer side until the sums are small.
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  const int64_t panels = static_cast<int64_t>(panels_.size());
  const int64_t block_lanes = 2 * arithmetic_.lanes;
  int64_t part_blocks = blocks, part_panels = panels;
  const auto part_bytes = [&] {
    return part_blocks * block_lanes * part_panels * std::max(pitch_, max_panel_) * row_taps_ *
           unit();
  };
  const auto parts = [&] {
    return ceil_div(blocks, part_blocks) * ceil_div(panels, part_panels) * g.groups;
  };
  const auto divisible = [&] { return part_blocks > 1 || part_panels > 1; };
  const auto halve = [&] {
    const bool lanes = part_blocks * block_lanes >= part_panels * pitch_ && part_blocks > 1;
    int64_t& longer = lanes || part_panels == 1 ? part_blocks : part_panels;
    longer = (longer + 1) / 2;
  };
  while (part_bytes() > kSumBytes && divisible()) halve();

  // Boxes: few pixels where a panel serves many taps, more where it serves one.
  const int64_t limit = row_taps_ >= 9 ? 128 : 256;
  PerAxis<int64_t> extent{g.batch, g.axes[0].y, g.axes[1].y, g.axes[2].y}, size{1, 1, 1, 1};
  const auto positions = [&](const PerAxis<int64_t>& windows) {
    int64_t product = 1;
    for (int a = 0; a < kBoxRank; ++a)
      product *= strip({sliding_[a]}, windows[a], Apart::windows).length;
    return product;
  };
  const int64_t x_channels = lanes_on_y_ ? part_panels * pitch_ : part_blocks * block_lanes;
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
  grid_ = {extent, size};
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
    if (extent[3] % 2) {
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
  x_strips_ = x_.packing.strips;
  y_strips_ = y_.packing.strips;
  join_rows(x_.packing, grid_);
  join_rows(y_.packing, grid_);
  // At the border every tap has runs of its own, unless those of very large kernels took too much
  // room.
  constexpr int64_t kRunBytes = 64 << 10;
  run_count_ = size[0] * size[1] * size[2] * steps_;
  run_lists_ = row_taps_ * run_count_ * int64_t{sizeof(Run)} <= kRunBytes ? row_taps_ : 1;

  // Chunks of boxes, each with sums of its own, where there are few parts. More parts instead pack
  // the same pixels several times: only while that costs little (a copied element costs about as
  // much as 16 multiply-adds).
  const int64_t boxes = grid_.boxes();
  chunks_ = std::clamp<int64_t>(kPartialBytes / (part_bytes() * parts()), 1,
                                std::min(boxes, ceil_div(kItems, parts())));
  const auto cheap = [&] {
    const double rows = static_cast<double>(part_panels * pitch_);
    const double lanes = static_cast<double>(part_blocks * block_lanes);
    const double spread = static_cast<double>(x_.positions) / static_cast<double>(y_.positions);
    const double copied = lanes_on_y_ ? rows * spread + lanes : rows + lanes * spread;
    return 16 * copied < 0.05 * rows * lanes * static_cast<double>(row_taps_);
  };
  while (parts() * chunks_ < kItems && divisible() && cheap()) halve();
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);

  int64_t rows = 0, lanes = 0;
  for (int64_t group = 0; group < g.groups; ++group)
    for (int64_t block = 0; block < blocks; block += part_blocks)
      for (int64_t panel = 0; panel < panels; panel += part_panels) {
        Part part{group,
                  block,
                  std::min(part_blocks, blocks - block),
                  panel,
                  std::min(part_panels, panels - panel),
                  0};
        int64_t part_lanes = 0;
        for (int64_t i = block; i < block + part.blocks; ++i) {
          part_blocks_.push_back({static_cast<int64_t>(parts_.size()), i - block, part.units});
          part.units += block_units(part, blocks_[i]);
          part_lanes += int64_t{blocks_[i].vectors} * arithmetic_.lanes;
        }
        part_units_ = std::max(part_units_, part.units);
        rows = std::max(rows, part.panels * pitch_);
        lanes = std::max(lanes, part_lanes);
        parts_.push_back(part);
      }
  row_buffer_units_ = rows * (lanes_on_y_ ? x_ : y_).positions;
  lane_buffer_units_ = lanes * (lanes_on_y_ ? y_ : x_).positions;
  buffer_bytes_ = run_lists_ * run_count_ * int64_t{sizeof(Run)} +
                  (row_buffer_units_ + lane_buffer_units_) * unit();
  // Sums of parts are their thread's, those of chunks are kept until all are there.
  local_bytes_ = buffer_bytes_ + (chunks_ > 1 ? 0 : part_units_ * unit());
  workspace =
      problem_.threads * local_bytes_ +
      (chunks_ > 1 ? part_units_ * unit() * chunks_ * static_cast<int64_t>(parts_.size()) : 0);
}

// Whether any tap leaves x for any window of the box.
bool WeightsPlan::meets_padding(const BoxRange& box) const {
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = problem_.geometry.axes[a];
    const Range windows{box.begin[a + 1], box.begin[a + 1] + box.count[a + 1]};
    for (const int64_t tap : {int64_t{0}, axis.k - 1}) {
      const Range inside = incident(axis, tap, {0, axis.x});
      if (inside.begin > windows.begin || inside.end < windows.end) return true;
    }
  }
  return false;
}

// The windows of a box for which a tap lies in x. Where taps are joined, for any of the last axis.
BoxRange WeightsPlan::windows_of_tap(const BoxRange& box, const PerAxis<int64_t>& tap) const {
  BoxRange result = box;
  for (int a = 0; a < (joined_ ? kMaxRank - 1 : kMaxRank); ++a) {
    const Axis& axis = problem_.geometry.axes[a];
    const Range inside = incident(axis, tap[a + 1], {0, axis.x});
    const int64_t begin = std::max(inside.begin, box.begin[a + 1]);
    const int64_t end = std::min(inside.end, box.begin[a + 1] + box.count[a + 1]);
    result.begin[a + 1] = begin;
    result.count[a + 1] = std::max<int64_t>(0, end - begin);
  }
  return result;
}

// Runs over some windows of a packed box, for lanes in blocks of `width`. Returns how many.
int64_t WeightsPlan::fill_runs(const BoxRange& box, const BoxRange& windows, int64_t width,
                               Run* runs) const {
  const int64_t x_pitch = lanes_on_y_ ? pitch_ : width, y_pitch = lanes_on_y_ ? width : pitch_;
  const int64_t x_step = steps_ * x_strips_[3].footings[0].window * x_pitch;
  // Pairs of windows, and an odd window at the box's end. A pair may have one window too many: what
  // lies there is zero.
  const int64_t first = (windows.begin[3] - box.begin[3]) / steps_;
  const int64_t end = windows.begin[3] - box.begin[3] + windows.count[3];
  const bool odd = box.count[3] % steps_ && end == box.count[3];
  const int64_t pairs =
      std::max<int64_t>(0, std::min(ceil_div(end, steps_), box.count[3] / steps_) - first);
  int64_t count = 0;
  const auto add = [&](int64_t x, int64_t y, int64_t steps) {
    const Run run = lanes_on_y_ ? Run{x, y, steps} : Run{y, x, steps};
    const int64_t a_step = lanes_on_y_ ? x_step : y_pitch, b_step = lanes_on_y_ ? y_pitch : x_step;
    Run& last = runs[std::max<int64_t>(count, 1) - 1];
    // Rows that follow each other without a gap are one run.
    if (count && run.a == last.a + last.steps * a_step && run.b == last.b + last.steps * b_step)
      last.steps += run.steps;
    else
      runs[count++] = run;
  };
  if (windows.count[3] == 0) return 0;
  for_each_row(windows, [&](const PerAxis<int64_t>& j) {
    const auto at = [&](int a) { return j[a] - box.begin[a]; };
    const auto row = [&](const PerAxis<Strip>& strips) {
      return ((at(0) * strips[1].length + at(1) * strips[1].footings[0].window) * strips[2].length +
              at(2) * strips[2].footings[0].window) *
             strips[3].length;
    };
    const int64_t x = row(x_strips_) * x_pitch, y = row(y_strips_) * y_pitch;
    if (pairs) add(x + first * x_step, y + first * y_pitch, pairs);
    if (odd) add(x + x_.packing.last_window->to * x_pitch, y + box.count[3] / steps_ * y_pitch, 1);
  });
  return count;
}

void WeightsPlan::run_boxes(const Operands& operands, const Part& part, int64_t first_box,
                            int64_t boxes, char* sums, char* memory) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const Side& row_side = lanes_on_y_ ? x_ : y_;
  const Side& lane_side = lanes_on_y_ ? y_ : x_;
  Run* const runs = reinterpret_cast<Run*>(memory);
  char* const row_buffer = memory + run_lists_ * run_count_ * int64_t{sizeof(Run)};
  char* const lane_buffer = row_buffer + row_buffer_units_ * unit();
  const auto data = [&](const Side& side, Role role) {
    return static_cast<const char*>(operands.data[role]) +
           part.group * side.channels * side.packing.tensor.channel * bytes;
  };
  const char* const row_data = data(row_side, lanes_on_y_ ? Role::x : Role::y);
  const char* const lane_data = data(lane_side, lanes_on_y_ ? Role::y : Role::x);

  // Panels are as long as the box's positions, in either buffer.
  std::vector<Panel> row_panels, lane_panels;
  for (int64_t i = 0; i < part.panels; ++i) {
    const RowPanel& panel = panels_[part.first_panel + i];
    row_panels.push_back({panel.channel, panel.channels, i * pitch_ * row_side.positions,
                          row_side.packing.strips[3].length * pitch_, pitch_, 1});
  }
  int64_t lane_offset = 0;
  for (int64_t i = 0; i < part.blocks; ++i) {
    const LaneBlock& block = blocks_[part.first_block + i];
    const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
    lane_panels.push_back({block.lane, block.live, lane_offset,
                           lane_side.packing.strips[3].length * width, width, 1,
                           width - block.live});
    lane_offset += width * lane_side.positions;
  }

  // Pairs of windows have windows of their own.
  const auto y_windows = [&](BoxRange windows) {
    windows.begin[3] /= steps_;
    windows.count[3] = ceil_div(windows.count[3], steps_);
    return windows;
  };
  int64_t tile_calls = 0, row_channels = 0, lane_channels = 0;
  for (int64_t p = 0; p < part.panels; ++p) {
    const RowPanel& panel = panels_[part.first_panel + p];
    row_channels += panel.channels;
    for (int64_t i = 0; i < part.blocks; ++i)
      tile_calls +=
          row_taps_ *
          ceil_div(panel.rows,
                   int64_t{arithmetic_.tiles.max_rows[blocks_[part.first_block + i].vectors]});
  }
  for (const Panel& panel : lane_panels) lane_channels += panel.channels;

  const int64_t last_taps = joined_ ? 1 : sliding_[3].taps;
  std::vector<int64_t> run_counts(run_lists_);
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    const BoxRange y_box = y_windows(box);
    pack_box(row_side.packing, row_data, lanes_on_y_ ? box : y_box, row_panels.data(), part.panels,
             row_buffer);
    pack_box(lane_side.packing, lane_data, lanes_on_y_ ? y_box : box, lane_panels.data(),
             part.blocks, lane_buffer);

    BoxPrefetch next_rows, next_lanes;
    if (index + 1 < first_box + boxes) {
      const BoxRange next = grid_.box(index + 1);
      const BoxRange next_y = y_windows(next);
      next_rows = {row_side.packing, row_data, lanes_on_y_ ? next : next_y,
                   row_panels.front().first, row_channels};
      next_lanes = {lane_side.packing, lane_data, lanes_on_y_ ? next_y : next,
                    lane_panels.front().first, lane_channels};
    }
    const int64_t row_lines = ceil_div(next_rows.lines(), tile_calls);
    const int64_t lane_lines = ceil_div(next_lanes.lines(), tile_calls);

    const bool cut = run_lists_ > 1 && meets_padding(box);
    char* c = sums;
    int vectors = 0;
    for (int64_t i = 0; i < part.blocks; ++i) {
      const LaneBlock& block = blocks_[part.first_block + i];
      const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
      const int64_t x_pitch = lanes_on_y_ ? pitch_ : width, y_pitch = lanes_on_y_ ? width : pitch_;
      const int64_t x_step = steps_ * x_strips_[3].footings[0].window * x_pitch;
      TileCall call{};
      call.a_step = lanes_on_y_ ? x_step : y_pitch;
      call.b_step = lanes_on_y_ ? y_pitch : x_step;
      call.c_row = width;
      call.live = width;
      call.start = index == first_box ? Start::zero : Start::accumulate;
      if (vectors != block.vectors) {
        vectors = block.vectors;
        for (int64_t list = 0; list < (cut ? row_taps_ : 1); ++list) {
          const PerAxis<int64_t> tap{0, list / last_taps / sliding_[2].taps,
                                     list / last_taps % sliding_[2].taps, list % last_taps};
          run_counts[list] =
              fill_runs(box, cut ? windows_of_tap(box, tap) : box, width, runs + list * run_count_);
        }
      }
      for (int64_t p = 0; p < part.panels; ++p) {
        const RowPanel& panel = panels_[part.first_panel + p];
        const char* const a = row_buffer + row_panels[p].offset * unit();
        const char* const b = lane_buffer + lane_panels[i].offset * unit();
        const int64_t max_rows = arithmetic_.tiles.max_rows[block.vectors];
        const int64_t tiles = ceil_div(panel.rows, max_rows);
        for (int64_t t0 = 0; t0 < sliding_[1].taps; ++t0)
          for (int64_t t1 = 0; t1 < sliding_[2].taps; ++t1)
            for (int64_t t2 = 0; t2 < last_taps; ++t2) {
              const int64_t row = t0 * x_strips_[1].footings[0].tap * x_strips_[2].length +
                                  t1 * x_strips_[2].footings[0].tap;
              const int64_t tap = (row * x_strips_[3].length + t2 * x_strips_[3].footings[0].tap) *
                                  x_pitch * unit();
              call.a = a + (lanes_on_y_ ? tap : 0);
              call.b = b + (lanes_on_y_ ? 0 : tap);
              const int64_t list = cut ? (t0 * sliding_[2].taps + t1) * last_taps + t2 : 0;
              call.runs = runs + list * run_count_;
              call.run_count = run_counts[list];
              for (int64_t tile = 0, done = 0; tile < tiles; ++tile) {
                const int64_t rows = (panel.rows - done) / (tiles - tile);
                call.c = c;
                arithmetic_.tiles.adjacent[block.vectors][rows](call);
                next_rows.fetch(row_lines);
                next_lanes.fetch(lane_lines);
                call.a = static_cast<const char*>(call.a) + rows * unit();
                c += rows * width * unit();
                done += rows;
              }
            }
      }
    }
  }
}

// Writes one block of a part's sums to the weights.
void WeightsPlan::finish(const Operands& operands, const Part& part, int64_t index,
                         char* sums) const {
  const WeightsStrides& w = problem_.w;
  const int64_t bytes = element_bytes(problem_.dtype);
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  const LaneBlock& block = blocks_[part.first_block + index];
  const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
  const int64_t row_stride = lanes_on_y_ ? w.x_channel : w.y_channel;
  const int64_t lane_stride = lanes_on_y_ ? w.y_channel : w.x_channel;
  const int64_t last_taps = joined_ ? 1 : sliding_[3].taps;
  for (int64_t p = part.first_panel; p < part.first_panel + part.panels; ++p) {
    const RowPanel& panel = panels_[p];
    char* const to =
        static_cast<char*>(operands.data.w) +
        (part.group * w.group + panel.channel * row_stride + block.lane * lane_stride) * bytes;
    const int64_t tap_units = panel.rows * width;
    if (joined_) {
      for (int64_t t0 = 0; t0 < sliding_[1].taps; ++t0)
        for (int64_t t1 = 0; t1 < sliding_[2].taps; ++t1)
          for (int64_t c = 0; c < panel.channels; ++c) {
            // The taps of the last axis, often contiguous.
            unpack({sums + ((t0 * sliding_[2].taps + t1) * tap_units + c * width) * unit(),
                    panel.channels * width, 1,
                    to + (t0 * w.axes[0] + t1 * w.axes[1] + c * row_stride) * bytes, w.axes[2],
                    lane_stride, sliding_[3].taps, block.live});
          }
    } else if (w.axes[2] == 1 && lane_stride != 1 && row_stride != 1) {
      // Taps are contiguous: where all axes are, as one.
      const bool flat = w.axes[1] == last_taps &&
                        (sliding_[1].taps == 1 || w.axes[0] == sliding_[2].taps * last_taps);
      const int64_t rows = flat ? row_taps_ : last_taps;
      for (int64_t first = 0; first < row_taps_; first += rows) {
        const int64_t t0 = first / last_taps / sliding_[2].taps,
                      t1 = first / last_taps % sliding_[2].taps;
        for (int64_t c = 0; c < panel.rows; ++c)
          unpack({sums + (first * tap_units + c * width) * unit(), tap_units, 1,
                  to + (t0 * w.axes[0] + t1 * w.axes[1] + c * row_stride) * bytes, 1, lane_stride,
                  rows, block.live});
      }
    } else {
      for (int64_t tap = 0; tap < row_taps_; ++tap) {
        const int64_t t2 = tap % last_taps, t1 = tap / last_taps % sliding_[2].taps,
                      t0 = tap / last_taps / sliding_[2].taps;
        unpack({sums + tap * tap_units * unit(), width, 1,
                to + (t0 * w.axes[0] + t1 * w.axes[1] + t2 * w.axes[2]) * bytes, row_stride,
                lane_stride, panel.rows, block.live});
      }
    }
    sums += tap_units * row_taps_ * unit();
  }
}

void WeightsPlan::run(const Operands& operands) const {
  const int64_t parts = static_cast<int64_t>(parts_.size()), boxes = grid_.boxes();
  if (chunks_ == 1) {
    parallel_for(problem_.threads, parts, [&](int64_t i) {
      char* const memory = local_scratch<char>(local_bytes_);
      char* sums = memory + buffer_bytes_;
      run_boxes(operands, parts_[i], 0, boxes, sums, memory);
      for (int64_t block = 0; block < parts_[i].blocks; ++block) {
        finish(operands, parts_[i], block, sums);
        sums += block_units(parts_[i], blocks_[parts_[i].first_block + block]) * unit();
      }
    });
    return;
  }
  char* const all = shared_scratch<char>(part_units_ * unit() * parts * chunks_);
  const auto sums_of = [&](int64_t part, int64_t chunk) {
    return all + (part * chunks_ + chunk) * part_units_ * unit();
  };
  parallel_for(problem_.threads, parts * chunks_, [&](int64_t i) {
    const int64_t part = i / chunks_, chunk = i % chunks_, first = chunk * boxes_per_chunk_;
    run_boxes(operands, parts_[part], first, std::min(boxes_per_chunk_, boxes - first),
              sums_of(part, chunk), local_scratch<char>(local_bytes_));
  });
  // Chunks are added in their order, whoever computed them.
  parallel_for(problem_.threads, static_cast<int64_t>(part_blocks_.size()), [&](int64_t i) {
    const PartBlock& block = part_blocks_[i];
    const Part& part = parts_[block.part];
    char* const sums = sums_of(block.part, 0) + block.offset * unit();
    add_chunks(problem_.dtype, sums, part_units_, chunks_,
               block_units(part, blocks_[part.first_block + block.block]));
    finish(operands, part, block.block, sums);
  });
}

}  // namespace

std::unique_ptr<const Plan> weights_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<WeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
