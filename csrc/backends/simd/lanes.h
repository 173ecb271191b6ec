// Loops whose lanes are channels on every side (kernels.h, LaneRow, LaneTaps, Spread). As in
// tile.h, all loops over accumulators are unrolled by pragma to keep them in registers. Included by
// kernels.cpp alone.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Accumulators that leave 4 of 16 registers for operands. 8 hide the latency of a multiply-add.
constexpr int kLaneSums = 12;

// ---- fprop, dgrad ------------------------------------------------------------------------------

// With `adjacent` pixels their distance is a constant, and so all addresses are.
template <class T, int pixels, bool adjacent>
void lane_pixels(const LaneRow& row, const T* a, T* c) {
  constexpr int n = kLanes<T>;
  const int64_t step = adjacent ? n : row.a_step;
  const T* w = static_cast<const T*>(row.w);
  Vector<T> sums[pixels];
  const Vector<T> start = load(static_cast<const T*>(row.start));
#pragma GCC unroll 16
  for (int i = 0; i < pixels; ++i) sums[i] = start;
  for (const int64_t *tap = row.taps, *end = tap + row.tap_count; tap != end; ++tap, w += n) {
    const T* const at = a + *tap;
    const Vector<T> weight = load(w);
#pragma GCC unroll 16
    for (int i = 0; i < pixels; ++i) sums[i] += load(at + i * step) * weight;
  }
  if (row.live == n) {
#pragma GCC unroll 16
    for (int i = 0; i < pixels; ++i) store(c + i * row.c_step, sums[i]);
    return;
  }
  // The lanes behind the live ones belong to a neighbour.
  T some[n];
#pragma GCC unroll 16
  for (int i = 0; i < pixels; ++i) {
    store(some, sums[i]);
    for (int64_t j = 0; j < row.live; ++j) c[i * row.c_step + j] = some[j];
  }
}

template <class T>
using LanePixels = void (*)(const LaneRow&, const T*, T*);

template <class T, bool adjacent, int... pixels>
constexpr std::array<LanePixels<T>, sizeof...(pixels)> lane_pixels_by_count(
    std::integer_sequence<int, pixels...>) {
  return {lane_pixels<T, pixels + 1, adjacent>...};
}

template <class T, bool adjacent>
constexpr auto kLanePixels =
    lane_pixels_by_count<T, adjacent>(std::make_integer_sequence<int, kLaneSums>());

template <class T>
void lane_row(const LaneRow& row) {
  const auto& by_count = row.a_step == kLanes<T> ? kLanePixels<T, true> : kLanePixels<T, false>;
  const T* a = static_cast<const T*>(row.a);
  T* c = static_cast<T*>(row.c);
  int64_t left = row.pixels;
  for (int64_t pieces = (left + kLaneSums - 1) / kLaneSums; pieces; --pieces) {
    const int64_t pixels = left / pieces;  // even pieces: no short one at the end
    by_count[pixels - 1](row, a, c);
    a += pixels * row.a_step;
    c += pixels * row.c_step;
    left -= pixels;
  }
}

// ---- wgrad -------------------------------------------------------------------------------------

template <class T, int rows, int taps>
struct LaneSums {
  Vector<T> sums[rows][taps];

  CONVTBW_INLINE void step(const T* const (&a)[rows], const T* b) {
    const Vector<T> right = load(b);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
      for (int t = 0; t < taps; ++t) sums[r][t] += load(a[r] + t * kLanes<T>) * right;
  }
};

template <class T, int rows, int taps>
void lane_taps(const LaneTaps& call) {
  constexpr int n = kLanes<T>;
  // Where there are few taps, pixels take turns in several sets of sums: chains of multiply-adds
  // must be many to hide their latency.
  constexpr int sets = std::clamp(kLaneSums / (rows * taps), 1, 4);
  LaneSums<T, rows, taps> sets_of[sets];
  T* const result = static_cast<T*>(call.sums);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
    for (int t = 0; t < taps; ++t)
#pragma GCC unroll 16
      for (int s = 0; s < sets; ++s) sets_of[s].sums[r][t] = Vector<T>{};
  const int64_t a_step = call.a_step, b_step = call.b_step;
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const T* a[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) a[r] = static_cast<const T*>(call.a) + run->a + call.rows[r];
    const T* b = static_cast<const T*>(call.b) + run->b;
    const auto next = [&] {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) a[r] += a_step;
      b += b_step;
    };
    int64_t left = run->steps;
    for (; left >= sets; left -= sets) {
#pragma GCC unroll 16
      for (int s = 0; s < sets; ++s, next()) sets_of[s].step(a, b);
    }
    for (; left > 0; --left, next()) sets_of[0].step(a, b);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
    for (int t = 0; t < taps; ++t) {
#pragma GCC unroll 16
      for (int s = 1; s < sets; ++s) sets_of[0].sums[r][t] += sets_of[s].sums[r][t];
      T* const sum = result + r * call.sums_row + t * n;
      store(sum, call.accumulate ? load(sum) + sets_of[0].sums[r][t] : sets_of[0].sums[r][t]);
    }
}

template <class T, int rows, int... tap>
constexpr void fill_lane_taps(LaneTapsFunctions& functions, std::integer_sequence<int, tap...>) {
  ((functions.at[rows][tap + 1] = lane_taps<T, rows, tap + 1>), ...);
}

template <class T, int... row>
constexpr LaneTapsFunctions lane_taps_functions(std::integer_sequence<int, row...>) {
  LaneTapsFunctions result{};
  (fill_lane_taps<T, row + 1>(result, std::make_integer_sequence<int, kLaneSums / (row + 1)>()),
   ...);
  return result;
}

template <class T>
constexpr LaneTapsFunctions kLaneTaps =
    lane_taps_functions<T>(std::make_integer_sequence<int, kMaxLaneRows>());

// ---- spreading ---------------------------------------------------------------------------------

template <class T>
void spread(const Spread& call) {
  constexpr int n = kLanes<T>;
  decltype(Vector<T>{} == Vector<T>{}) index;  // integers as wide as T
  for (int i = 0; i < n; ++i) index[i] = call.index[i];
  const int vectors = call.index[n - 1] / n + 1;  // indices ascend
  for (int64_t plane = 0; plane < call.planes; ++plane) {
    const T* from = static_cast<const T*>(call.from) + plane;
    T* to = static_cast<T*>(call.to) + plane * call.to_plane;
    if (vectors == 1) {
      for (int64_t i = 0; i < call.positions; ++i, from += call.from_step, to += n)
        store(to, Vector<T>(__builtin_shuffle(load(from), index)));
      continue;
    }
    for (int64_t i = 0; i < call.positions; ++i, from += call.from_step, to += n) {
      Vector<T> lanes = __builtin_shuffle(load(from), load(from + n), index);
      for (int v = 2; v < vectors; ++v)
        lanes = index >= v * n ? __builtin_shuffle(load(from + v * n), index) : lanes;
      store(to, lanes);
    }
  }
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
