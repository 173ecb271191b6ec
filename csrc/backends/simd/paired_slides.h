// wgrad of windows that slide over rows of positions of bfloat16, two positions at a time
// (kernels.h, LaneSlides): each lane holds a pair of neighbouring positions, and one dot product
// takes the place of two multiply-adds and of their conversions: 0.56 (7x7) to 0.81 (3x3) of the
// time (Zen 4). As in tile.h, all loops over accumulators are unrolled by pragma to keep them in
// registers. Included by kernels.cpp alone.
#pragma once

#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/lane_slides.h"
#include "backends/simd/tile.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <int rows, int taps>
struct PairedSums {
  Floats sums[rows][taps];
  Words windows[taps];  // that tap t of the last two positions met

  // `pair`: the windows whose tap 0 two positions meet.
  template <class Load>
  CONVTBW_INLINE void step(const Load& load_row, Words pair) {
    const Words between = windows[0] >> 16 | pair << 16;
#pragma GCC unroll kUnroll
    for (int t = taps - 1; t > 1; --t) windows[t] = loaded(windows[t - 2]);
    if constexpr (taps > 1) windows[1] = loaded(between);
    windows[0] = loaded(pair);
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      const Words x = loaded(load_row(r));
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t)
        sums[r][t] = Bfloat16Pairs::multiply_add(x, windows[t], sums[r][t]);
    }
  }
};

template <int rows, int taps>
void paired_slides(const LaneSlides& call) {
  PairedSums<rows, taps> tile;
  clear_sums(tile.sums);
  const int64_t a_step = call.a_step, b_step = call.b_step;
  for (const SlidLine *line = call.lines, *end = line + call.line_count; line != end; ++line) {
    const uint16_t* a[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r)
      a[r] = static_cast<const uint16_t*>(call.a) + line->a + call.rows[r].a;
    const uint16_t* b = static_cast<const uint16_t*>(call.b) + line->b;
    // Those before position -2, of which tap t meets the windows -2 - t and -1 - t.
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      tile.windows[t] = Words{};
      if (t + 2 <= call.before)
        tile.windows[t] = paired(b - (t + 2) * b_step, b - (t + 1) * b_step);
      else if (t + 1 <= call.before)
        tile.windows[t] = widen(b - (t + 1) * b_step) << 16;
    }
    int64_t left = call.positions;
    int64_t windows = smaller(left, call.windows);
    const auto next = [&] {
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) a[r] += 2 * a_step;
      b += 2 * b_step;
      left -= 2;
      windows -= 2;
    };
    const auto both = [&](int r)
                          __attribute__((always_inline)) { return paired(a[r], a[r] + a_step); };
    const auto one = [&](int r) __attribute__((always_inline)) { return widen(a[r]); };
    const uint16_t *const first_a = a[0], *const first_b = b;
    const int64_t pairs_end = windows & ~1;
    for (int64_t i = 0, stop = 0; i < pairs_end;) {
      stop = ask_ahead(call, first_a, 2 * a_step, first_b, 2 * b_step, stop, pairs_end);
      for (; i < stop; i += 2, next()) tile.step(both, paired(b, b + b_step));
    }
    for (; left > 0; next()) {
      const Words pair = windows > 0 ? widen(b) : Words{};
      if (left > 1)
        tile.step(both, pair);
      else
        tile.step(one, pair);
    }
  }
  add_tap_rows<float>(tile.sums, call.rows, call.sums_tap, static_cast<float*>(call.sums));
}

template <int taps, int... row>
constexpr void fill_paired_slides(LaneSlidesFunctions& functions,
                                  std::integer_sequence<int, row...>) {
  functions.max_rows[1][taps] = sizeof...(row);
  ((functions.at[1][row + 1][taps] = paired_slides<row + 1, taps>), ...);
}

template <int... tap>
constexpr LaneSlidesFunctions paired_slides_functions(std::integer_sequence<int, tap...>) {
  LaneSlidesFunctions functions{};
  (fill_paired_slides<tap + 1>(functions,
                               std::make_integer_sequence<int, kSlidRows<TapKind::one, tap + 1>>()),
   ...);
  return functions;
}

constexpr LaneSlidesFunctions kPairedSlides =
    paired_slides_functions(std::make_integer_sequence<int, kMaxSlidTaps>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
