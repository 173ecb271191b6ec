// fprop of windows that overlap by half (kernels.h, LaneWindowRows). As in tile.h, all loops over
// accumulators are unrolled by pragma to keep them in registers. Included by kernels.cpp alone.
#pragma once

#include <array>
#include <utility>

#include "backends/simd/copy.h"
#include "backends/simd/kernels.h"
#include "backends/simd/lanes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Accumulators, weights and a pixel fill 16 registers.
constexpr int kMaxWindows = 4;

template <class From, class T, int rows, int windows>
struct LaneWindowRowSums {
  Vector<T> sums[rows][windows];

  // Some columns of a row of positions: position i of a column, from `first` to `last`, is met by
  // window i with the taps at w, and by window i - 1 with those half a window behind.
  template <int first, int last>
  CONVTBW_INLINE void add(const LaneWindowRows& call, const From* a, const T* w, int64_t columns) {
    const int64_t step = call.stride * call.a_pixel, half = call.stride * call.w_tap;
    for (; columns > 0; --columns, a += call.a_pixel, w += call.w_tap) {
      Vector<T> near[rows], far[rows];
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) {
        near[r] = loaded(load(w + r * call.w_rows));
        far[r] = loaded(load(w + r * call.w_rows + half));
      }
#pragma GCC unroll kUnroll
      for (int i = first; i <= last; ++i) {
        if (call.a_ahead) __builtin_prefetch(a + i * step + call.a_ahead, 0, 2);
        const Vector<T> pixel = loaded(load(a + i * step));
#pragma GCC unroll kUnroll
        for (int r = 0; r < rows; ++r) {
          if (i < windows) sums[r][i] += pixel * near[r];
          if (i > 0) sums[r][i - 1] += pixel * far[r];
        }
      }
    }
  }
};

// One vector of some windows from `window` on. `slot`: of its partial sums, which are not shared
// with a vector that overlaps.
template <class From, class To, int rows, int windows, class T = SumOf<To>>
void lane_windows_tile(const LaneWindowRows& call, int64_t window, int64_t lane, int64_t slot) {
  LaneWindowRowSums<From, T, rows, windows> tile;
  T* const partial = static_cast<T*>(call.partial) + window * call.partial_step + slot;
  const Vector<T> start = load(static_cast<const T*>(call.start) + lane);
  // Of two rows, the first one begins, and the other, which began before, ends; or one of them.
  constexpr int last = rows - 1;
  const bool begins = rows > 1 || call.begins, ends = rows > 1 || !call.begins;
#pragma GCC unroll kUnroll
  for (int i = 0; i < windows; ++i) {
    tile.sums[0][i] = start;
    if (ends) tile.sums[last][i] = load(partial + i * call.partial_step);
  }
  const From* a = static_cast<const From*>(call.a) + window * call.stride * call.a_pixel + lane;
  const T* w = static_cast<const T*>(call.w) + lane;
  const int64_t step = call.stride * call.a_pixel, here = call.stride - call.pad;
  const bool first = window == 0, end = window + windows == call.windows;
  for (int64_t row = 0; row < call.a_rows; ++row, a += call.a_row, w += call.w_row) {
    const T* const middle = w + call.pad * call.w_tap;
    if (end)
      tile.template add<0, windows - 1>(call, a, middle, here);
    else
      tile.template add<0, windows>(call, a, middle, here);
    // Those that lie before the first window.
    const From* const before = a + here * call.a_pixel - step;
    if (first)
      tile.template add<1, windows>(call, before, w, call.pad);
    else
      tile.template add<0, windows>(call, before, w, call.pad);
  }
  To* const c = static_cast<To*>(call.c) + window * call.c_step + lane;
#pragma GCC unroll kUnroll
  for (int i = 0; i < windows; ++i) {
    if (ends) store(c + i * call.c_step, tile.sums[last][i]);
    if (begins) store(partial + i * call.partial_step, tile.sums[0][i]);
  }
}

using LaneWindowsTile = void (*)(const LaneWindowRows&, int64_t, int64_t, int64_t);

template <class From, class To, int rows, int... windows>
constexpr std::array<LaneWindowsTile, sizeof...(windows)> lane_windows_tiles(
    std::integer_sequence<int, windows...>) {
  return {lane_windows_tile<From, To, rows, windows + 1>...};
}

// By windows - 1.
template <class From, class To, int rows>
constexpr auto kLaneWindowsTiles =
    lane_windows_tiles<From, To, rows>(std::make_integer_sequence<int, kMaxWindows>());

// All lanes of a few windows before the next ones: what they read is contiguous.
template <class From, class To>
void lane_window_rows(const LaneWindowRows& row) {
  using T = SumOf<To>;
  constexpr int64_t n = kLanes<T>, line = 64 / sizeof(From);
  LaneWindowRows call = row;
  const int64_t pieces = (row.windows + kMaxWindows - 1) / kMaxWindows;
  for (int64_t piece = 0, window = 0, windows; piece < pieces; ++piece, window += windows) {
    windows = (row.windows - window) / (pieces - piece);  // as even as can be
    for (int64_t lane = 0; lane < row.lanes; lane += n) {
      call.a_ahead = lane % line == 0 ? row.a_ahead : 0;
      const auto tile = row.both ? kLaneWindowsTiles<From, To, 2>[windows - 1]
                                 : kLaneWindowsTiles<From, To, 1>[windows - 1];
      tile(call, window, smaller(lane, row.lanes - n), lane);
    }
  }
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
