// How a weights gradient is computed (weights.h).
#include "backends/simd/weights.h"

#include <algorithm>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/epilogue.h"
#include "backends/simd/matrix_copies.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

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
  const int64_t x_pitch = this->x_pitch(width), y_pitch = lanes_on_y_ ? width : pitch_;
  const int64_t x_step = steps_ * x_strips_[3].footings[0].window * x_pitch;
  // Pairs of windows, and an odd window at the box's end. A pair may have one window too many: what
  // lies there is zero.
  const int64_t first = (windows.begin[3] - box.begin[3]) / steps_;
  const int64_t end = windows.begin[3] - box.begin[3] + windows.count[3];
  const bool odd = box.count[3] % steps_ && end == box.count[3];
  const int64_t pairs =
      std::max<int64_t>(0, std::min(ceil_div(end, steps_), box.count[3] / steps_) - first);
  const int64_t a_step = lanes_on_y_ ? x_step : y_pitch, b_step = lanes_on_y_ ? y_pitch : x_step;
  int64_t count = 0, since_fold = 0;
  const auto add_piece = [&](const Run& run) {
    Run& last = runs[std::max<int64_t>(count, 1) - 1];
    last.fold = count && since_fold + run.steps > most_steps();
    since_fold = last.fold ? run.steps : since_fold + run.steps;
    // Rows that follow each other without a gap are one run.
    if (count && !last.fold && run.a == last.a + last.steps * a_step &&
        run.b == last.b + last.steps * b_step)
      last.steps += run.steps;
    else
      runs[count++] = run;
  };
  const auto add = [&](int64_t x, int64_t y, int64_t steps) {
    Run run = lanes_on_y_ ? Run{x, y, 0} : Run{y, x, 0};
    for (int64_t pieces = ceil_div(steps, most_steps()); pieces; --pieces) {
      run.steps = steps / pieces;  // as even as can be
      add_piece(run);
      run.a += run.steps * a_step;
      run.b += run.steps * b_step;
      steps -= run.steps;
    }
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
                            int64_t boxes, char* sums, char* memory,
                            std::atomic<bool>* finite) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const Side &row_side = this->row_side(), &lane_side = this->lane_side();
  Run* const runs = reinterpret_cast<Run*>(memory);
  char* const row_buffer = memory + run_bytes_;
  char* const lane_buffer = row_buffer + row_buffer_bytes_;
  const auto data = [&](const Side& side, Role role) {
    return static_cast<const char*>(operands.data[role]) +
           part.group * side.channels * side.packing.tensor.channel * bytes;
  };
  const char* const row_data = data(row_side, lanes_on_y_ ? Role::x : Role::y);
  const char* const lane_data = data(lane_side, lanes_on_y_ ? Role::y : Role::x);

  std::vector<Panel> row_panels, lane_panels;
  for (int64_t i = 0; i < part.panels; ++i) {
    const RowPanel& panel = panels_[part.first_panel + i];
    row_panels.push_back({panel.channel, panel.channels, i * panel_step(row_side, pitch_),
                          row_side.packing.strips[3].length * pitch_, pitch_, 1});
  }
  const int64_t lane_row = lane_side.packing.strips[3].length;
  if (joined_lanes()) {
    if (taps_in_lanes_)
      lane_panels.push_back({0, x_.channels, 0, lane_row, 1, x_channel_});
    else
      lane_panels.push_back({0, x_.channels, 0, lane_row * x_.channels, x_.channels, 1});
  } else {
    int64_t lane_offset = 0;
    for (int64_t i = 0; i < part.blocks; ++i) {
      const LaneBlock& block = blocks_[part.first_block + i];
      const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
      lane_panels.push_back(
          {block.lane, block.live, lane_offset, lane_row * width, width, 1, width - block.live});
      lane_offset += panel_step(lane_side, width);
    }
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
  const bool finishes = chunks_ == 1 && !writes_weights_;
  std::vector<int64_t> run_counts(run_lists_);
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    const BoxRange y_box = y_windows(box);
    pack_box(row_side.packing, row_data, lanes_on_y_ ? box : y_box, row_panels.data(), part.panels,
             row_buffer);
    pack_box(lane_side.packing, lane_data, lanes_on_y_ ? y_box : box, lane_panels.data(),
             std::ssize(lane_panels), lane_buffer);

    BoxPrefetch next_rows, next_lanes;
    if (index + 1 < first_box + boxes) {
      const BoxRange next = grid_.box(index + 1);
      const BoxRange next_y = y_windows(next);
      next_rows = {row_side.packing,         row_data,     lanes_on_y_ ? next : next_y,
                   row_panels.front().first, row_channels, tile_calls};
      next_lanes = {lane_side.packing,         lane_data,     lanes_on_y_ ? next_y : next,
                    lane_panels.front().first, lane_channels, tile_calls};
    }

    const bool cut = run_lists_ > 1 && meets_padding(box);
    char* c = sums;
    int vectors = 0;
    for (int64_t i = 0; i < part.blocks; ++i) {
      const LaneBlock& block = blocks_[part.first_block + i];
      const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
      const int64_t x_pitch = this->x_pitch(width), y_pitch = lanes_on_y_ ? width : pitch_;
      const int64_t x_step = steps_ * x_strips_[3].footings[0].window * x_pitch;
      TileCall call{};
      call.set_steps(lanes_on_y_ ? x_step : y_pitch, lanes_on_y_ ? y_pitch : x_step, unit());
      call.live = writes_weights_ ? block.live : width;
      if (writes_weights_) call.result = problem_.dtype;
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
        const char* const b =
            lane_buffer +
            (joined_lanes() ? joined_place(block.lane) : lane_panels[i].offset) * unit();
        const int64_t max_rows = arithmetic_.tiles.max_rows[block.vectors];
        const int64_t tiles = ceil_div(panel.rows, max_rows);
        const SumSteps step = sum_steps(panel, block);
        char* const to = writes_weights_ ? weights_of(operands, part.group, block, panel) : c;
        const int64_t to_bytes = writes_weights_ ? bytes : unit();
        call.c_row = writes_weights_ ? row_stride() : step.row;
        for (int64_t t0 = 0; t0 < sliding_[1].taps; ++t0)
          for (int64_t t1 = 0; t1 < sliding_[2].taps; ++t1)
            for (int64_t t2 = 0; t2 < last_taps; ++t2) {
              const int64_t row = t0 * x_strips_[1].footings[0].tap * x_strips_[2].length +
                                  t1 * x_strips_[2].footings[0].tap;
              const int64_t tap = (row * x_strips_[3].length + t2 * x_strips_[3].footings[0].tap) *
                                  x_pitch * unit();
              call.a = a + (lanes_on_y_ ? tap : 0);
              call.b = b + (lanes_on_y_ ? 0 : tap);
              const int64_t own_tap = (t0 * sliding_[2].taps + t1) * last_taps + t2;
              const int64_t list = cut ? own_tap : 0;
              call.runs = runs + list * run_count_;
              call.run_count = run_counts[list];
              call.c = to + (writes_weights_ ? tap_offset(own_tap) : own_tap * step.tap) * to_bytes;
              for (int64_t tile = 0, done = 0; tile < tiles; ++tile) {
                const int64_t rows = (panel.rows - done) / (tiles - tile);
                arithmetic_.tiles.adjacent[block.vectors][rows](call);
                next_rows.fetch();
                next_lanes.fetch();
                call.a = static_cast<const char*>(call.a) + rows * unit();
                call.c = static_cast<char*>(call.c) + rows * call.c_row * to_bytes;
                done += rows;
              }
            }
        if (finishes && index + 1 == first_box + boxes)
          finish(operands, part.group, block, panel, c, finite);
        if (keeps_sums_) c += panel_units(panel, block) * unit();
      }
    }
  }
}

WeightsPlan::SumSteps WeightsPlan::sum_steps(const RowPanel& panel, const LaneBlock& block) const {
  const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
  // A panel that is finished at once lies as in the weights. Where sums are kept, those of a tile
  // are neighbours: they come from the third-level cache (21 to 21 channels, 16x16 taps: otherwise
  // 1.12 times as long).
  if (taps_inside_ && !keeps_sums_) return {row_taps_ * width, width};
  return {width, panel.rows * width};
}

// Where in the weights a tap is that has tiles of its own.
int64_t WeightsPlan::tap_offset(int64_t tap) const {
  const std::array<int64_t, kMaxRank>& stride = problem_.w.axes;
  const int64_t last_taps = joined_ ? 1 : sliding_[3].taps, rows = tap / last_taps;
  return rows / sliding_[2].taps * stride[0] + rows % sliding_[2].taps * stride[1] +
         tap % last_taps * stride[2];
}

// Where the weights of a panel and a block of lanes begin.
char* WeightsPlan::weights_of(const Operands& operands, int64_t group, const LaneBlock& block,
                              const RowPanel& panel) const {
  const int64_t lane = joined_lanes() ? 0 : block.lane * lane_stride();
  return static_cast<char*>(operands.data.w) +
         (group * problem_.w.group + panel.channel * row_stride() + lane) *
             element_bytes(result_dtype(problem_));
}

// Writes a panel's sums for a block of lanes to the weights.
void WeightsPlan::finish(const Operands& operands, int64_t group, const LaneBlock& block,
                         const RowPanel& panel, char* sums, std::atomic<bool>* finite) const {
  if (finite && !all_finite(sums, panel_units(panel, block), problem_.dtype)) *finite = false;
  const WeightsStrides& w = problem_.w;
  const int64_t bytes = element_bytes(result_dtype(problem_));
  const int64_t row = row_stride(), lane = lane_stride();
  char* const to = weights_of(operands, group, block, panel);
  const SumSteps step = sum_steps(panel, block);
  // `count` vectors of some lanes, from one to the next in the sums and in the weights.
  const auto write_lanes = [&](int64_t from, int64_t from_step, int64_t offset, int64_t to_step,
                               int64_t to_lane, int64_t count, int64_t lanes) {
    write_weights(
        problem_, arithmetic_,
        {sums + from * unit(), from_step, 1, to + offset * bytes, to_step, to_lane, count, lanes});
  };
  const auto write = [&](int64_t from, int64_t from_step, int64_t offset, int64_t to_step,
                         int64_t count) {
    write_lanes(from, from_step, offset, to_step, lane, count, block.live);
  };
  if (taps_in_lanes_) {
    const int64_t channel = block.lane / sliding_[3].taps, first = block.lane % sliding_[3].taps;
    for (int64_t tap = 0; tap < row_taps_; ++tap)
      write_lanes(tap * step.tap, step.row, tap_offset(tap) + first * w.axes[2] + channel * lane,
                  row, w.axes[2], panel.rows, block.live);
  } else if (joined_lanes()) {
    // The lanes of one tap of the last axis after the other.
    for (int64_t tap = 0; tap < row_taps_; ++tap)
      for (int64_t first = 0, count; first < block.live; first += count) {
        const int64_t last_tap = (block.lane + first) / x_.channels;
        const int64_t channel = (block.lane + first) % x_.channels;
        count = std::min(block.live - first, x_.channels - channel);
        write_lanes(tap * step.tap + first, step.row,
                    tap_offset(tap) + last_tap * w.axes[2] + channel * lane, row, lane, panel.rows,
                    count);
      }
  } else if (joined_) {
    // The taps of the last axis, often contiguous.
    for (int64_t tap = 0; tap < row_taps_; ++tap)
      for (int64_t c = 0; c < panel.channels; ++c)
        write(tap * step.tap + c * step.row, panel.channels * step.row, tap_offset(tap) + c * row,
              w.axes[2], sliding_[3].taps);
  } else if (taps_inside_) {
    // All taps at once where all axes are contiguous, and all rows where these follow each other.
    const bool flat = taps_follow(problem_, 1);
    const int64_t taps = flat ? row_taps_ : sliding_[inner_axis() + 1].taps;
    if (flat && row == taps && step.row == taps * step.tap)
      return write(0, step.tap, 0, 1, panel.rows * taps);
    for (int64_t i = 0; i < panel.rows; ++i)
      for (int64_t tap = 0; tap < row_taps_; tap += taps)
        write(i * step.row + tap * step.tap, step.tap, tap_offset(tap) + i * row, 1, taps);
  } else {
    for (int64_t tap = 0; tap < row_taps_; ++tap)
      write(tap * step.tap, step.row, tap_offset(tap), row, panel.rows);
  }
}

void WeightsPlan::compute(const Operands& operands, std::atomic<bool>* finite) const {
  const int64_t parts = static_cast<int64_t>(parts_.size()), boxes = grid_.boxes();
  if (chunks_ == 1) {
    parallel_for(problem_.threads, parts * all_.slices, [&](int64_t i) {
      char* const memory = local_scratch<char>(local_bytes_);
      run_boxes(operands_of_slice(all_, operands, i / parts), parts_[i % parts], 0, boxes,
                memory + buffer_bytes_, memory, finite);
    });
    return;
  }
  char* const all = shared_scratch<char>(part_units_ * unit() * parts * all_.slices * chunks_);
  sum_chunks(
      problem_.threads, {problem_.dtype, all, all_.slices * parts, chunks_, part_units_},
      [&](int64_t i) { return parts_[i % parts].units; },
      [&](int64_t i, int64_t chunk, char* sums) {
        const int64_t first = chunk * boxes_per_chunk_;
        run_boxes(operands_of_slice(all_, operands, i / parts), parts_[i % parts], first,
                  std::min(boxes_per_chunk_, boxes - first), sums,
                  local_scratch<char>(local_bytes_), nullptr);
      });
  const int64_t blocks = static_cast<int64_t>(part_blocks_.size());
  parallel_for(problem_.threads, all_.slices * blocks, [&](int64_t i) {
    const PartBlock& where = part_blocks_[i % blocks];
    const Part& part = parts_[where.part];
    const LaneBlock& block = blocks_[part.first_block + where.block];
    char* sums =
        all + ((i / blocks * parts + where.part) * chunks_ * part_units_ + where.offset) * unit();
    const Operands here = operands_of_slice(all_, operands, i / blocks);
    for (int64_t p = part.first_panel; p < part.first_panel + part.panels; ++p) {
      finish(here, part.group, block, panels_[p], sums, finite);
      sums += panel_units(panels_[p], block) * unit();
    }
  });
}

}  // namespace convtbw::simd
