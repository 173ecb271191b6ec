// wgrad of windows that overlap by half (kernels.h, LaneWindows). As in tile.h, all loops over
// accumulators are unrolled by pragma to keep them in registers. Included by kernels.cpp alone.
#pragma once

#include <type_traits>
#include <utility>

#include "backends/simd/copy.h"
#include "backends/simd/kernels.h"
#include "backends/simd/lanes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <class T, int rows, int columns>
struct LaneWindowSums {
  Vector<T> sums[rows][2][columns];
  Vector<T> before[rows];  // of b, the window before

  // The columns from `first` on, of a position's windows.
  template <int first, int end, class A>
  CONVTBW_INLINE void add(const A* a, int64_t a_column, const Vector<T> (&here)[rows]) {
#pragma GCC unroll kUnroll
    for (int c = first; c < end; ++c) {
      const Vector<T> x = loaded(load(a + c * a_column));
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) {
        sums[r][0][c] += x * here[r];
        sums[r][1][c] += x * before[r];
      }
    }
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) before[r] = here[r];
  }
};

// One vector.
template <class A, class B, int rows, int columns, class T = SumOf<B>>
CONVTBW_INLINE void add_lane_windows(const LaneWindows& call, const A* a, const B* b, T* to) {
  constexpr int n = kLanes<T>;
  const int64_t a_column = call.a_column, a_step = call.a_step;
  const int64_t b_row = call.b_row, b_step = call.b_step;
  LaneWindowSums<T, rows, columns> tile;
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r) {
    tile.before[r] = Vector<T>{};
    if (call.begun) tile.before[r] = load(b + r * b_row - b_step);
#pragma GCC unroll kUnroll
    for (int c = 0; c < columns; ++c) tile.sums[r][0][c] = tile.sums[r][1][c] = Vector<T>{};
  }
  Vector<T> here[rows];
  const auto load_windows = [&](bool present) __attribute__((always_inline)) {
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      here[r] = Vector<T>{};
      if (present) here[r] = load(b + r * b_row);
    }
  };
  int64_t left = call.steps;
  const auto next = [&] {
    a += a_step;
    b += b_step;
    --left;
  };
  if (columns > 1 && call.head) {
    load_windows(left > call.ended);
    tile.template add<columns / 2, columns>(a, a_column, here);
    next();
  }
  const bool tail = columns > 1 && call.tail;
  const int64_t behind = tail || call.ended;
  if (call.a_ahead) {
    for (; left > behind; next()) {
#pragma GCC unroll kUnroll
      for (int c = 0; c < columns; ++c) __builtin_prefetch(a + c * a_column + call.a_ahead, 0, 2);
      __builtin_prefetch(b + call.b_ahead, 0, 2);
      load_windows(true);
      tile.template add<0, columns>(a, a_column, here);
    }
  } else {
    for (; left > behind; next()) {
      load_windows(true);
      tile.template add<0, columns>(a, a_column, here);
    }
  }
  if (left > 0) {
    load_windows(!call.ended);
    if (tail)
      tile.template add<0, (columns + 1) / 2>(a, a_column, here);
    else
      tile.template add<0, columns>(a, a_column, here);
  }
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int w = 0; w < 2; ++w)
#pragma GCC unroll kUnroll
      for (int c = 0; c < columns; ++c) {
        T* const sum = to + r * call.sums_row + w * call.sums_window + c * n;
        store(sum, load(sum) + tile.sums[r][w][c]);
      }
}

template <class A, class B, int rows, int columns, class T = SumOf<B>>
void lane_windows(const LaneWindows& call) {
  constexpr int n = kLanes<T>;
  const A* const a = static_cast<const A*>(call.a);
  const B* const b = static_cast<const B*>(call.b);
  T* to = static_cast<T*>(call.sums);
  for (int64_t lane = 0;; lane += n, to += call.sums_vector) {
    const int64_t first = smaller(lane, call.lanes - n);
    add_lane_windows<A, B, rows, columns>(call, a + first, b + first, to);
    if (lane + n >= call.lanes) return;
  }
}

template <class A, class B>
constexpr LaneWindowsFunctions kLaneWindows = {
    {{lane_windows<A, B, 1, 1>, lane_windows<A, B, 1, 2>},
     {lane_windows<A, B, 2, 1>, lane_windows<A, B, 2, 2>}}};

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
