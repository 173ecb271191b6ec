// wgrad of windows that overlap by half: 4x4 of stride 2, 16x16 of stride 8. In two axes each
// position of x is met by four of them, and loaded once for all; tap by tap it is loaded four
// times. Rows of positions are met one by one, by the windows that are there: no padding is.
//
// Time of all taps over that of these (8 lanes, Zen 5): 4x4 of stride 2, 64 and 256 channels in
// place, 1.3 to 1.8, 256 that are transposed 1.2; 16x16 of stride 8, 21 channels in place, 2.3.
#include <algorithm>

#include "backends/simd/grouped_weights.h"
#include "backends/simd/phases.h"

namespace convtbw::simd {

// Where each position of a row meets two windows; in the axis before, as many or one.
void GroupedWeightsPlan::list_columns() {
  const auto& [images, depth, rows, row] = sliding_;
  if (spreading_kernels_ || x_.padded() || row.stride < 2 || !overlap_by_half(row)) return;
  if (rows.taps > 1 && !overlap_by_half(rows)) return;
  for (int64_t column = 0; column < row.stride; column += 2) {
    Columns columns{column, std::min<int64_t>(2, row.stride - column), {}};
    for (int64_t c = 0; c < columns.count; ++c) {
      const int64_t first = row.first + column + c;
      columns.present[c] = {ceil_div(-first, row.stride),
                            floor_div(x_tensor_.extent[3] - 1 - first, row.stride) + 1};
    }
    columns_.push_back(columns);
  }
}

// Positions of a row of x and the windows that meet them.
void GroupedWeightsPlan::add_overlapping_row(const Side& x, const Side& y, const Range& steps,
                                             const Range& windows, const LaneParts::Range& lanes,
                                             LaneWindows call, int rows, Next& next,
                                             char* sums) const {
  // What so many positions and their windows occupy stays in the first-level cache: of float32, 256
  // channels 8 steps, 64 32.
  constexpr int64_t kBytes = 32 << 10;
  const Sliding& s = sliding_[3];
  const int64_t step_bytes = s.stride * x.view.stride[3] * x.bytes + 2 * y.view.stride[3] * y.bytes;
  // Pixels of an expanded tensor occupy nothing.
  const int64_t most = std::clamp<int64_t>(kBytes / std::max<int64_t>(1, step_bytes), 8, kMaxPiece);
  const auto& functions =
      arithmetic_.lane_windows[static_cast<int>(x_.dtype())][static_cast<int>(y_.dtype())];
  const char* const a = static_cast<const char*>(call.a) + s.first * x.view.stride[3] * x.bytes;
  const char* const b = static_cast<const char*>(call.b);
  const int64_t count = steps.end - steps.begin;
  // A few steps more cost less than a piece of so few.
  const int64_t pieces = ceil_div(std::max<int64_t>(1, count - most / 4), most);
  call.a_column = x.view.stride[3];
  call.a_step = s.stride * x.view.stride[3];
  call.b_step = y.view.stride[3];
  call.sums_window = s.stride * parts_.width;
  call.sums_vector = vector_sums_;
  call.lanes = std::max(lanes.count, parts_.width);
  for (int64_t i = 0, from = steps.begin, to; i < pieces; ++i, from = to) {
    to = from + (steps.end - from) / (pieces - i);  // as even as can be
    for (const auto& [column, columns, present] : columns_) {
      const int64_t begin = std::max(from, present[columns - 1].begin);
      const int64_t end = std::min(to, present[0].end);
      if (begin >= end) continue;
      call.head = begin < present[0].begin;
      call.tail = end > present[columns - 1].end;
      call.steps = end - begin;
      call.begun = begin > windows.begin;
      call.ended = end > windows.end;
      call.a = a + (column * call.a_column + begin * call.a_step) * x.bytes;
      call.b = b + begin * call.b_step * y.bytes;
      call.sums = sums + column * parts_.width * unit();
      functions.at[rows - 1][columns - 1](call);
      next.fetch();
    }
  }
}

void GroupedWeightsPlan::add_overlapping(const Side& x, const Side& y, const BoxRange& box,
                                         const LaneParts::Range& lanes, Next& next,
                                         char* sums) const {
  const Sliding &depth = sliding_[1], &row = sliding_[2];
  const bool overlap = row.taps > 1;
  const int64_t sums_row = sliding_[3].taps * parts_.width;
  const auto end = [&](int a) { return box.begin[a] + box.count[a]; };
  // Windows that are there: beyond the box, too, where y is in place. What only the last one of
  // them meets comes after it.
  const auto there = [&](int a) {
    return y_.in_place() ? Range{0, grid_.extent[a]} : Range{box.begin[a], end(a)};
  };
  const auto steps = [&](int a) {
    return Range{box.begin[a], end(a) + (end(a) == there(a).end ? 1 : 0)};
  };
  LaneWindows call{};
  call.b_row = -y.view.stride[2];
  call.sums_row = row.stride * sums_row;
  if (asks_ahead_) {
    call.a_ahead = row.stride * x.view.stride[2];
    call.b_ahead = y.view.stride[2];
  }
  PerAxis<int64_t> window = box.begin, position{};
  const auto add_row = [&](int64_t u, int64_t t1, int64_t t2) {
    position[2] = u * row.stride + row.first + t2;
    if (position[2] < 0 || position[2] >= x_tensor_.extent[2]) return;
    const bool before = overlap && u > there(2).begin, here = u < there(2).end;
    window[2] = here ? u : u - 1;
    window[3] = 0;
    const int64_t tap = t1 * row.taps + t2 + (here ? 0 : row.stride);
    for (int64_t plane = 0; plane < order_.planes; ++plane) {
      call.a = x.view.data + (offset(position, x.view.stride) + plane * x.view.plane) * x.bytes;
      call.b = y.view.data + (offset(window, y.view.stride) + plane * y.view.plane) * y.bytes;
      add_overlapping_row(x, y, steps(3), there(3), lanes, call, before && here ? 2 : 1, next,
                          sums + (plane * taps_ * parts_.width + tap * sums_row) * unit());
    }
  };
  const Range rows = overlap ? steps(2) : Range{box.begin[2], end(2)};
  for (window[0] = box.begin[0]; window[0] < end(0); ++window[0])
    for (window[1] = box.begin[1]; window[1] < end(1); ++window[1])
      for (int64_t t1 = 0; t1 < depth.taps; ++t1) {
        position[0] = window[0];
        position[1] = window[1] * depth.stride + depth.first + t1 * depth.dilation;
        if (position[1] < 0 || position[1] >= x_tensor_.extent[1]) continue;
        for (int64_t u = rows.begin; u < rows.end; ++u)
          for (int64_t t2 = 0; t2 < (overlap ? row.stride : 1); ++t2) add_row(u, t1, t2);
      }
}

}  // namespace convtbw::simd
