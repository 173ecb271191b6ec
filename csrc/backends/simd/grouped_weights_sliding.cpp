// wgrad of windows that slide over rows of positions one by one: each position is loaded once for
// all of a row's taps, with the windows that meet them in registers; tap by tap it is loaded as
// often as there are taps. What lies beyond a row's ends is not met: rows need no padding, and
// their ends are no regions. Where windows are several taps apart, so are the taps that slide over
// the same positions: each such *phase* has every second tap and position, or third.
//
// Time of all taps over that of these (Zen 5; float32 with 8 lanes, with 16, bfloat16 with 8, with
// 16). Channels last: 3x3 1.0 to 1.35, 1.1 to 1.3, 1.0 to 1.4, 1.2 to 1.4; 5x5 1.1 to 1.65, 1.5 to
// 1.85, 1.1 to 1.3, 1.5 to 1.8; 7x7 1.0 to 2.1, 1.5 to 2, 1.25 to 1.7, 1.85 to 2.3; 3x3x3 0.9
// to 1.4, 1.05 to 1.5, 1.35 to 1.55, 1.55 to 1.85. Channels first, transposed, 7x7 to 20x20:
// 3x3 1.15 to 1.5, 5x5 1.3 to 2.5, 7x7 1.2 to 2.7. With strides of 2 and 3 (Zen 4, the same four)
// 5x5 1.0 to 1.6, 1.05 to 1.6, 1.3 to 1.5, 1.3 to 1.9; 7x7 1.25 to 1.6, 1.4 to 1.6, 1.25
// to 1.8, 1.7 to 2.4. 1-D, one row, with 8 and 16 lanes: k15 1.1 to 1.45, 1.3 to 1.45; k31 1.3
// to 1.65, 1.3 to 1.5; k63 1.9, 1.6 to 1.8; bfloat16 pairs 1.7 to 2.5.
#include <algorithm>

#include "backends/simd/grouped_weights.h"

namespace convtbw::simd {

// A single row of few taps shares too little: 1-D k3 0.92 to 1.09 of the time of taps in turn.
bool GroupedWeightsPlan::may_slide() const {
  constexpr int64_t kLeastTaps = 5;
  const int64_t taps = sliding_[3].taps, phases = taps_apart(sliding_[3]);
  if (phases > 1) return tap_rows_ > 1 && taps > 2 * phases;
  return phases == 1 && taps > 1 && (tap_rows_ > 1 || taps_ >= kLeastTaps);
}

// Whether a row of x in place and those of windows stay in the first-level cache from one half of
// their lines to the next. Time of all taps over that of these where they do not, 256
// and 512 channels of 28x28 to 56x56: 3x3 0.75 to 0.95; of more taps, outweighs_rows().
bool GroupedWeightsPlan::rows_stay() const {
  const int64_t step = x_tensor_.stride[3] * sliding_[3].stride * element_bytes(x_tensor_.dtype);
  // A vector of a whole line is met once for each phase.
  const bool once =
      parts_.width * unit() >= kLineBytes && taps_apart(sliding_[3]) == 1 && !spreading_kernels_;
  return once || std::min(grid_.extent[3], kMaxPiece) <= 4 * cache_sets(step);
}

// Whether a single row of taps is so long that x is better copied than met where rows do not stay.
// Time over that of taps in turn, in place, 256 and 512 channels of 400 (Zen 4, 8 lanes): 5 to 9
// taps 1.02 to 1.18, 11 0.9 to 1.0, 15 0.76 to 0.93, 31 and 63 0.54 to 0.78. With several rows,
// 3x3 to 7x7, 0.76 to 1.35. y, met once for all taps of a piece, is not worth a copy: 1.2 (15 taps)
// to 1.0 (63).
bool GroupedWeightsPlan::copies_rows() const {
  return may_slide() && tap_rows_ == 1 && taps_ > kMaxSlidTaps && !rows_stay();
}

const LaneSlidesFunctions& GroupedWeightsPlan::slides() const {
  if (spreading_kernels_) return spreading_kernels_->slides;
  const Arithmetic& arithmetic = keeping() ? *pairs_ : arithmetic_;
  return arithmetic.lane_slides[static_cast<int>(x_.dtype())][static_cast<int>(y_.dtype())];
}

// Whether kPairedSlidTaps are met of two vectors together. One of half a cache line reads it twice,
// the second time from the second-level cache where rows do not stay in the first, and two loads a
// cycle must not be of the same halves of two lines. Time of one vector after the other over that
// of two together (Zen 4, 8 lanes, rows of 56 to 112): 1.0 to 1.35; rows of 28 0.93 to 1.0, but 1.1
// to 1.6 where they do not stay; of 7 and 14, and of 16 bits, which take more to load, 0.8 to 1.0.
// 3 and 4 taps do not gain.
bool GroupedWeightsPlan::gains_pairing() const {
  constexpr int64_t kLongRow = 40;
  return slides().max_rows[2][kPairedSlidTaps] && x_.in_place() &&
         x_tensor_.dtype == sum_dtype(x_tensor_.dtype) &&
         (std::min(grid_.size[3], kMaxPiece) >= kLongRow || !rows_stay());
}

// Whether several rows of taps are so long that they slide although rows do not stay. Time of all
// taps over that of these (Zen 4, 8 lanes, 256 to 1024 channels of 14x14 to 112x112): 3x3 0.5 to
// 0.8, 4x4 0.85 to 1.3, 5x5 0.95 to 1.55, 6x6 0.65 to 1.2, 7x7 0.9 to 2.2, 9x9 1.2 to 1.8.
bool GroupedWeightsPlan::outweighs_rows() const {
  const int64_t taps = sliding_[3].taps;
  return taps_apart(sliding_[3]) == 1 && tap_rows_ > 1 &&
         (taps == kPairedSlidTaps ? pairs_vectors_ : taps > kPairedSlidTaps + 1);
}

bool GroupedWeightsPlan::gains_sliding() const {
  // Rows of fewer windows are mostly ends.
  constexpr int64_t kLeastWindows = 6;
  const Sliding& s = sliding_[3];
  const Footing& footing = x_.strips()[3].footings.front();
  const int64_t windows = std::min(grid_.size[3], kMaxPiece / 2);
  // Lines that lie far away are fetched in their order, not those of a phase: 1.0 to 1.4 of the
  // time.
  if (taps_apart(s) > 1 && asks_ahead_) return false;
  return footing.window == taps_apart(s) * footing.tap && windows >= kLeastWindows &&
         ceil_div(-s.first, s.stride) < windows &&
         (!x_.in_place() || rows_stay() || outweighs_rows());
}

// Adds the products of a phase of some rows of these windows to the sums of some vectors, so many
// together.
void GroupedWeightsPlan::add_slid_phase(const Side& x, const Side& y, const Taps& taps,
                                        const LaneParts::Range& lanes, const Range& vectors,
                                        int together, const Range& windows, int64_t phase,
                                        LaneSlides call, Next& next, char* sums) const {
  const LaneSlidesFunctions& functions = slides();
  // Several rows share the windows, unless there is but one. Seven taps nearly hide the latency by
  // themselves, and x is read once instead of for each piece: with 16 registers 0.8 to 0.96 of the
  // time of two rows of four and three (7x7 and 13x13, Zen 4); five or six 0.92 to 1.15.
  constexpr int64_t kManyTaps = 7;
  const Sliding& s = sliding_[3];
  const int64_t phases = taps_apart(s), phase_taps = ceil_div(taps.row_taps - phase, phases);
  int64_t tap_pieces = ceil_div(phase_taps, kMaxSlidTaps);
  const auto width_of = [&](int64_t pieces) { return ceil_div(phase_taps, pieces); };
  while (together == 1 && taps.row_count > 1 && width_of(tap_pieces) < kManyTaps &&
         functions.max_rows[1][width_of(tap_pieces)] == 1)
    ++tap_pieces;
  // Position i of a line is met by window i - t with tap t of the phase.
  const int64_t position = s.first + phase * s.dilation;
  Range present{windows.begin, windows.end + phase_taps - 1};
  if (!x_.padded())
    present = {std::max(present.begin, ceil_div(-position, s.stride)),
               std::min(present.end, floor_div(x_tensor_.extent[3] - 1 - position, s.stride) + 1)};
  const int64_t* const a_ahead = call.a_ahead;
  const int64_t b_ahead = call.b_ahead;
  int64_t ahead[kMaxAhead];
  call.a_ahead = ahead;
  // Vectors that meet the same lines of the cache.
  const int64_t line_vectors = std::max<int64_t>(together, kLineBytes / (parts_.width * y.bytes));
  // Their calls take turns in asking: each asks for what one window in so many meets anew. Returns
  // in how many. All at once wait for each other: a core has few line fill buffers.
  const auto ask = [&](int64_t vector, int64_t row, int64_t call_of_rows, int64_t calls_of_rows) {
    const int64_t first = vector - vector % line_vectors;
    const int64_t calls = std::min(line_vectors, vectors.end - first) / together;
    const int64_t every = calls_of_rows * calls;
    const int64_t index = call_of_rows * calls + (vector - first) / together;
    const int64_t lane = parts_.lane(lanes, vector), first_lane = parts_.lane(lanes, first);
    // Where what this call asks for begins.
    int64_t a = x_lane(x, lanes, first_lane, 0) + index * call.a_step;
    int64_t b = first_lane + index * call.b_step;
    call.a_ahead_step = call.a_step * x.bytes;
    call.b_ahead_step = call.b_step * y.bytes;
    if (in_order_) {
      // At most a line for each window that asks: none is left out.
      call.a_ahead_step = call.b_ahead_step = kLineBytes / every;
      const int64_t turn = first_lane * y.bytes / kLineBytes * every + index;
      a = b = turn * (windows.end - windows.begin) * call.b_ahead_step / y.bytes;
    }
    a -= x_lane(x, lanes, lane, 0) + taps.rows[row].a - taps.rows[0].a;
    for (int64_t i = 0; i < call.a_ahead_count; ++i) ahead[i] = a_ahead[i] + a;
    call.b_ahead = b_ahead + b - lane;
    return every;
  };
  call.spread.group = order_.group_lanes;
  call.sums_vector = vector_sums_;
  call.sums_tap = phases * parts_.width;
  const auto add = [&](int64_t vector, int64_t tap, int64_t rows, int64_t width, int64_t every) {
    const int64_t lane = parts_.lane(lanes, vector);
    for (int64_t plane = 0; plane < order_.planes; ++plane) {
      const int64_t a = x_lane(x, lanes, lane, plane) + (call.before + tap) * x.window[3];
      call.a = x.view.data + (a + phase * taps.step) * x.bytes;
      const int64_t b = plane * y.view.plane + lane + call.before * y.window[3];
      call.b = y.view.data + b * y.bytes;
      const int64_t first_tap = plane * taps_ + phase + tap * phases;
      call.sums = sums + (vector * vector_sums_ + first_tap * parts_.width) * unit();
      call.spread.plane = plane;
      call.ahead_every = plane ? 0 : every;
      functions.at[together][rows][width](call);
      next.fetch();
    }
  };
  for (int64_t piece = 0, tap = 0, width; piece < tap_pieces; ++piece, tap += width) {
    width = (phase_taps - tap) / (tap_pieces - piece);
    const int64_t begin = std::max(present.begin, windows.begin + tap);
    const int64_t end = std::min(present.end, windows.end + tap + width - 1);
    if (begin >= end) continue;
    call.positions = end - begin;
    call.before = begin - tap - windows.begin;
    call.windows = windows.end - (begin - tap);
    const int64_t row_pieces = ceil_div(taps.row_count, functions.max_rows[together][width]);
    for (int64_t i = 0, row = 0, rows; i < row_pieces; ++i, row += rows) {
      rows = (taps.row_count - row) / (row_pieces - i);  // as even as can be
      call.rows = taps.rows + row;
      for (int64_t v = vectors.begin; v < vectors.end; v += together) {
        const int64_t every = b_ahead && phase + tap == 0 ? ask(v, row, i, row_pieces) : 0;
        add(v, tap, rows, width, every);
      }
    }
  }
}

// So many lanes at a time: what they read stays in the first-level cache, from phase to phase too.
void GroupedWeightsPlan::add_slid_lines(const Side& x, const Side& y, const Taps& taps,
                                        const LaneParts::Range& lanes, const Range& windows,
                                        const LaneSlides& call, Next& next, char* sums) const {
  constexpr int64_t kLanes = 32;
  const int64_t phases = taps_apart(sliding_[3]);
  for (int64_t first = 0, vector = 0; first < lanes.count; first += kLanes) {
    const int64_t end = std::min(ceil_div(first + kLanes, parts_.width), vectors_of(lanes));
    // The last vector may overlap the one before.
    const int64_t whole = std::min(end, lanes.count / parts_.width);
    for (int64_t phase = 0; phase < phases; ++phase) {
      const int64_t phase_taps = ceil_div(taps.row_taps - phase, phases);
      const bool pairs = pairs_vectors_ && phase_taps == kPairedSlidTaps;
      const int64_t paired = pairs ? vector + (whole - vector) / 2 * 2 : vector;
      if (vector < paired)
        add_slid_phase(x, y, taps, lanes, {vector, paired}, 2, windows, phase, call, next, sums);
      if (paired < end)
        add_slid_phase(x, y, taps, lanes, {paired, end}, 1, windows, phase, call, next, sums);
    }
    vector = end;
  }
}

void GroupedWeightsPlan::add_sliding(const Side& x, const Side& y, const BoxRange& box,
                                     const LaneParts::Range& lanes, LaneTapRow* rows, Next& next,
                                     char* sums) const {
  const auto add_region = [&](const Region& region) {
    const Taps taps = list_taps(x, region, rows);
    if (taps.row_count == 0) return;
    SlidLine lines[kMinSteps];
    LaneSlides call{};
    call.lines = lines;
    call.a_step = x.window[3];
    call.b_step = y.window[3];
    int64_t ahead[kMaxAhead];
    call.a_ahead = ahead;
    call.a_ahead_count = list_steps_ahead(x, y, region, rows[0], ahead, call.b_ahead);
    const int64_t pieces = ceil_div(region.windows.count[3], kMaxPiece);
    Range windows{0, region.windows.begin[3]};
    const int64_t all_end = windows.end + region.windows.count[3];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      windows.begin = windows.end;
      windows.end += (all_end - windows.begin) / (pieces - piece);  // as even as can be
      const auto flush = [&] {
        if (call.line_count) add_slid_lines(x, y, taps, lanes, windows, call, next, sums);
        call.line_count = 0;
      };
      region.for_each_line(3, [&](PerAxis<int64_t> u) {
        u[3] = windows.begin;
        lines[call.line_count++] = {x.at(u), y.at(u)};
        if (call.line_count * (windows.end - windows.begin) >= kMinSteps) flush();
      });
      flush();
    }
  };
  for_each_region(sliding_, x_tensor_, x_.padded(), box, add_region, 3);
}

}  // namespace convtbw::simd
