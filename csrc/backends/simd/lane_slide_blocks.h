// wgrad of windows that slide over rows of positions one by one (kernels.h, LaneSlides), for more
// taps than registers hold windows of: some windows are met at a time, and each of their positions
// is loaded once for all of them. Chains of multiply-adds are as many as taps, so 8 taps and more
// hide their latency: 10 to 12 of them run at 0.99 of the full rate, where 6 and 7 that slide
// reach 0.77 and 0.88 (8 lanes, Zen 4). Of two vectors together five taps are as many: 0.95 of the
// rate, where 3 rows of 3 taps and of 2 that slide by one vector reach 0.7 to 0.8, with pixels a
// power of two apart 0.82 and 0.45. As in tile.h, all loops over accumulators are unrolled by
// pragma to keep them in registers. Included by lane_slides.h alone.
#pragma once

#include <algorithm>

#include "backends/simd/kernels.h"
#include "backends/simd/lanes.h"
#include "backends/simd/planes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Windows that are met at a time: with accumulators, a position and one more they fill the
// registers. The one more is GCC's: without it sums of 11 taps run at 0.85 of the rate.
// What is spread takes one for its index.
template <TapKind kind, int vectors, int taps>
constexpr int kBlockWindows =
    std::min(4, (kRegisters - 2 - (kind == TapKind::spread)) / vectors - taps);

// Where it is time to, asks for what a later line meets; the window to ask at next, at most `end`.
// a and b: where the line's first position and window lie, and bytes that asking moves on by a
// window.
template <class A, class B>
CONVTBW_INLINE int64_t ask_ahead(const LaneSlides& call, const A* a, int64_t a_step, const B* b,
                                 int64_t b_step, int64_t window, int64_t end) {
  if (!call.ahead_every) return end;
  for (int64_t i = 0; i < call.a_ahead_count; ++i)
    ask_far<2, A>(reinterpret_cast<const char*>(a + call.a_ahead[i]) + window * a_step);
  ask_far<2, B>(reinterpret_cast<const char*>(b + call.b_ahead) + window * b_step);
  return smaller(end, window + call.ahead_every);
}

// position(p, v) and window(i, v) load: tap t of window i meets position i + t.
template <int count, class T, int vectors, int taps, class Position, class Window>
CONVTBW_INLINE void add_slide_block(Vector<T> (&sums)[vectors][1][taps], const Position& position,
                                    const Window& window) {
  Vector<T> windows[count][vectors];
#pragma GCC unroll kUnroll
  for (int i = 0; i < count; ++i)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) windows[i][v] = loaded(window(i, v));
#pragma GCC unroll kUnroll
  for (int p = 0; p < count + taps - 1; ++p)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) {
      const Vector<T> x = loaded(position(p, v));
#pragma GCC unroll kUnroll
      for (int i = 0; i < count; ++i)
        if (i <= p && p - i < taps) sums[v][0][p - i] += x * windows[i][v];
    }
}

// Of one row.
template <class A, class B, TapKind kind, int vectors, int taps, class T = SumOf<B>>
void lane_slide_blocks(const LaneSlides& call) {
  constexpr int n = kLanes<T>, count = kBlockWindows<kind, vectors, taps>;
  constexpr int most = count + taps - 1;
  const LaneLoads<kind> loads(call.spread);
  static constexpr A kAbsent[vectors * n]{};
  Vector<T> sums[vectors][1][taps];
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v) clear_sums(sums[v]);
  const int64_t a_step = call.a_step, b_step = call.b_step, positions = call.positions;
  const int64_t end = smaller(positions, call.windows);
  for (const SlidLine *line = call.lines, *lines = line + call.line_count; line != lines; ++line) {
    const A* const a = static_cast<const A*>(call.a) + line->a + call.rows[0].a;
    const B* const b = static_cast<const B*>(call.b) + line->b;
    // Windows that come before position 0, and blocks that end behind the last one.
    int64_t first = -smaller(call.before, taps - 1);
    const auto add_end = [&] {
      add_slide_block<count, T>(
          sums,
          [&](int p, int v) __attribute__((always_inline)) {
            const int64_t at = first + p;
            return loads.all_beside_sums((at >= 0 && at < positions ? a + at * a_step : kAbsent) +
                                         v * n);
          },
          [&](int i, int v) __attribute__((always_inline)) {
            return first + i < end ? Vector<T>(load_beside_sums(b + (first + i) * b_step + v * n))
                                   : Vector<T>{};
          });
      first += count;
    };
    while (first < smaller(0, end)) add_end();
    const A* x = a + first * a_step;
    const B* y = b + first * b_step;
    const int64_t last = smaller(end - count, positions - most);
    for (int64_t stop = first; first <= last;) {
      stop = ask_ahead(call, a, call.a_ahead_step, b, call.b_ahead_step, stop, last + 1);
      for (; first < stop; first += count) {
        add_slide_block<count, T>(
            sums,
            [&](int p, int v) __attribute__((always_inline)) {
              return loads.all_beside_sums(x + p * a_step + v * n);
            },
            [&](int i, int v) __attribute__((always_inline)) {
              return load_beside_sums(y + i * b_step + v * n);
            });
        x += count * a_step;
        y += count * b_step;
      }
    }
    while (first < end) add_end();
  }
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v)
    add_tap_rows<T>(sums[v], call.rows, call.sums_tap,
                    static_cast<T*>(call.sums) + v * call.sums_vector);
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
