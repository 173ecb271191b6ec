// dgrad of windows that are several pixels apart (kernels.h, LaneScatter): a pixel of the operand
// is added to the results of all taps of its window, so that it is loaded once for these. As in
// tile.h, all loops over accumulators are unrolled by pragma to keep them in registers. Included by
// kernels.cpp alone.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/lanes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Sums of the results that a column of a is added to. `rows`: of taps; 0 stands for any number.
template <class From, class T, int taps, int rows>
struct ScatterColumn {
  // Those that fit stay in registers: GCC reads the others again after every store.
  static constexpr bool kHeld = rows > 0 && rows* taps + taps + 3 <= kRegisters;
  static constexpr int kHeldRows = kHeld ? rows : 1;

  const LaneTapRow* const tap_rows;
  const int64_t row_count, w_tap;
  const T* const w;
  Vector<T> start, sums[taps], weights[kHeldRows][taps];

  CONVTBW_INLINE ScatterColumn(const LaneScatter& call, int64_t lane)
      : tap_rows(call.tap_rows),
        row_count(call.tap_row_count),
        w_tap(call.w_tap),
        w(static_cast<const T*>(call.w) + lane),
        start(load(static_cast<const T*>(call.start) + lane)) {
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) sums[t] = start;
    if constexpr (kHeld)
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
        for (int t = 0; t < taps; ++t) weights[r][t] = load(w + tap_rows[r].w + t * w_tap);
  }

  CONVTBW_INLINE void add_row(const From* a, const T* row) {
    const Vector<T> pixel = loaded(load(a));
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) sums[t] += pixel * load(row + t * w_tap);
  }

  CONVTBW_INLINE void add(const From* a, const int64_t (&a_rows)[kHeldRows]) {
    if constexpr (kHeld) {
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) {
        const Vector<T> pixel = loaded(load(a + a_rows[r]));
#pragma GCC unroll kUnroll
        for (int t = 0; t < taps; ++t) sums[t] += pixel * weights[r][t];
      }
    } else {
      const int64_t count = rows ? rows : row_count;
      for (int64_t r = 0; r < count; ++r) add_row(a + tap_rows[r].a, w + tap_rows[r].w);
    }
  }

  CONVTBW_INLINE void next() {
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t)
      sums[t] = t + kScatterStride < taps ? sums[t + kScatterStride] : start;
  }
};

// One vector of some windows. What a call says is read before: stores might change it, as far as
// GCC knows.
template <class From, class To, int taps, int rows, class T = SumOf<To>>
void scattered_windows(const LaneScatter& call, int64_t lane, int64_t window, int64_t windows) {
  constexpr int stride = kScatterStride, last = (taps - 1) / stride;
  ScatterColumn<From, T, taps, rows> column(call, lane);
  int64_t a_rows[column.kHeldRows] = {};
  if constexpr (column.kHeld)
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) a_rows[r] = call.tap_rows[r].a;
  const int64_t a_step = call.a_step, c_step = call.c_step;
  const int64_t a_ahead = call.a_ahead, c_ahead = call.c_ahead;
  const int64_t begin = call.begin - window, end = call.end - window, columns = windows + last;
  const int64_t from = call.from - (window - last) * stride,
                to = call.to - (window - last) * stride;
  // Columns that are there, whose results are all there.
  const int64_t whole = std::max({begin, int64_t{last}, (from + stride - 1) / stride});
  const int64_t whole_end = smaller(smaller(end, columns), to / stride);
  const From* a = static_cast<const From*>(call.a) + window * a_step + lane;
  To* c = static_cast<To*>(call.c) + (window - last) * stride * c_step + lane;
  const auto run = [&](int64_t x, int64_t stop, auto all) __attribute__((always_inline)) {
    for (; x < stop; ++x, a += a_step, c += stride * c_step) {
      if (all || (begin <= x && x < end)) {
        if (a_ahead) __builtin_prefetch(a + a_ahead, 0, 3);
        column.add(a, a_rows);
      }
#pragma GCC unroll kUnroll
      for (int p = 0; p < stride; ++p) {
        const int64_t result = x * stride + p;
        if (!all && (x < last || result < from || result >= to)) continue;
        if (c_ahead) __builtin_prefetch(c + p * c_step + c_ahead, 1);
        store(c + p * c_step, column.sums[p]);
      }
      column.next();
    }
  };
  if (whole < whole_end) {
    run(0, whole, std::false_type());
    run(whole, whole_end, std::true_type());
    run(whole_end, columns, std::false_type());
  } else {
    run(0, columns, std::false_type());
  }
}

// The lanes of a cache line before the next line: where it is of several vectors, of so many
// windows that the first-level cache keeps what they read and write.
template <class From, class To, int taps>
void lane_scatter(const LaneScatter& call) {
  constexpr int64_t n = kLanes<SumOf<To>>, line = 64 / sizeof(From);
  constexpr int64_t kLines = 512, kPage = 4096, kFewWindows = 8;
  const bool apart = std::max(call.a_step, call.c_step) * int64_t{sizeof(From)} >= kPage;
  const int64_t most = apart      ? kFewWindows
                       : line > n ? std::max(kFewWindows, kLines / (call.tap_row_count + 2))
                                  : call.windows;
  constexpr int more = (taps + 1) / kScatterStride, fewer = taps / kScatterStride;
  const auto function = call.tap_row_count == more    ? scattered_windows<From, To, taps, more>
                        : call.tap_row_count == fewer ? scattered_windows<From, To, taps, fewer>
                                                      : scattered_windows<From, To, taps, 0>;
  for_each_piece<n>(call.lanes, apart ? call.lanes : line, call.windows, most,
                    [&](int64_t lane, int64_t window, int64_t windows) {
                      function(call, lane, window, windows);
                    });
}

template <class From, class To, int... taps>
constexpr LaneScatterFunctions lane_scatter_functions(std::integer_sequence<int, taps...>) {
  return {lane_scatter<From, To, taps + kMinScatterTaps>...};
}

// By taps - kMinScatterTaps.
template <class From, class To>
constexpr LaneScatterFunctions kLaneScatter = lane_scatter_functions<From, To>(
    std::make_integer_sequence<int, kMaxScatterTaps - kMinScatterTaps + 1>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
