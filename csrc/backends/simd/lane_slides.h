// wgrad of windows that slide over rows of positions (kernels.h, LaneSlides). As in tile.h, all
// loops over accumulators are unrolled by pragma to keep them in registers. Included by kernels.cpp
// alone.
#pragma once

#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/lane_slide_blocks.h"
#include "backends/simd/lanes.h"
#include "backends/simd/planes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <class T, int rows, int taps>
struct SlidSums {
  Vector<T> sums[rows][taps];
  Vector<T> windows[taps];  // that tap t of the last position met

  template <class Loads, class A>
  CONVTBW_INLINE void step(const Loads& loads, const A* const (&a)[rows], Vector<T> window) {
    // Moves between registers cost next to nothing, and need no copies of the loop.
#pragma GCC unroll kUnroll
    for (int t = taps - 1; t > 0; --t) windows[t] = loaded(windows[t - 1]);
    windows[0] = window;
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      const Vector<T> x = loaded(loads.all(a[r]));
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) sums[r][t] += x * windows[t];
    }
  }
};

template <class A, class B, TapKind kind, int rows, int taps, class T = SumOf<B>>
void lane_slides(const LaneSlides& call) {
  const LaneLoads<kind> loads(call.spread);
  SlidSums<T, rows, taps> tile;
  clear_sums(tile.sums);
  const int64_t a_step = call.a_step, b_step = call.b_step;
  for (const SlidLine *line = call.lines, *end = line + call.line_count; line != end; ++line) {
    const A* a[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) a[r] = static_cast<const A*>(call.a) + line->a + call.rows[r].a;
    const B* b = static_cast<const B*>(call.b) + line->b;
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps - 1; ++t) {
      tile.windows[t] = Vector<T>{};
      if (t < call.before) tile.windows[t] = load(b - (t + 1) * b_step);
    }
    const A* const first_a = a[0];
    const B* const first_b = b;
    const auto next = [&] {
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) a[r] += a_step;
      b += b_step;
    };
    const int64_t windows = smaller(call.positions, call.windows);
    int64_t i = 0;
    for (int64_t stop = 0; i < windows;) {
      stop = ask_ahead(call, first_a, call.a_ahead_step, first_b, call.b_ahead_step, stop, windows);
      for (; i < stop; ++i, next()) tile.step(loads, a, loaded(load(b)));
    }
    for (; i < call.positions; ++i, next()) tile.step(loads, a, Vector<T>{});
  }
  add_tap_rows<T>(tile.sums, call.rows, call.sums_tap, static_cast<T*>(call.sums));
}

// The most rows of so many taps: accumulators, windows, a position and one more fill the registers,
// with the index of what is spread.
template <TapKind kind, int taps>
constexpr int kSlidRows =
    std::min(kMaxSlidRows, (kRegisters - 2 - (kind == TapKind::spread) - taps) / taps);

template <class A, class B, TapKind kind, int taps, int... row>
constexpr void fill_lane_slides(LaneSlidesFunctions& functions,
                                std::integer_sequence<int, row...>) {
  functions.max_rows[1][taps] = std::max<int>(1, sizeof...(row));
  if constexpr (sizeof...(row) == 0)
    functions.at[1][1][taps] = lane_slide_blocks<A, B, kind, 1, taps>;
  ((functions.at[1][row + 1][taps] = lane_slides<A, B, kind, row + 1, taps>), ...);
  if constexpr (taps == kPairedSlidTaps && kBytes < 64 && kind == TapKind::one) {
    functions.max_rows[2][taps] = 1;
    functions.at[2][1][taps] = lane_slide_blocks<A, B, kind, 2, taps>;
  }
}

template <class A, class B, TapKind kind, int... tap>
constexpr LaneSlidesFunctions lane_slides_functions(std::integer_sequence<int, tap...>) {
  LaneSlidesFunctions functions{};
  (fill_lane_slides<A, B, kind, tap + 1>(
       functions, std::make_integer_sequence<int, kSlidRows<kind, tap + 1>>()),
   ...);
  return functions;
}

// By taps of a row.
template <class A, class B, TapKind kind = TapKind::one>
constexpr LaneSlidesFunctions kLaneSlides =
    lane_slides_functions<A, B, kind>(std::make_integer_sequence<int, kMaxSlidTaps>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
