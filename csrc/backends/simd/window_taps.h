// Loops whose lanes are neighbouring taps of one channel (kernels.h: WindowRows and WindowTaps). As
// in tile.h, all loops over accumulators are unrolled by pragma to keep them in registers. Included
// by kernels.cpp alone.
#pragma once

#include <utility>

#include "backends/simd/copy.h"
#include "backends/simd/kernels.h"
#include "backends/simd/planes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// ---- fprop -------------------------------------------------------------------------------------

template <class T>
void window_rows(const WindowRows& call) {
  constexpr int n = kLanes<T>;
  const int64_t step = call.step;
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* const a = static_cast<const T*>(call.a) + row * call.a_row;
    T* const c = static_cast<T*>(call.c) + row * call.c_row;
    // A vector of results at a time; the last one ends with the last result.
    for (int64_t i = 0; i < call.count; i += n) {
      const int64_t first = smaller(i, call.count - n);
      const T* w = static_cast<const T*>(call.w);
      Vector<T> sums[n];
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) sums[j] = Vector<T>{};
      for (int64_t k = 0; k < call.tap_rows; ++k)
        for (int64_t t = 0; t < call.taps; t += n, w += n) {
          const T* const here = a + call.tap_row[k] + first * step + t;
          const Vector<T> weights = load(w);
#pragma GCC unroll kUnroll
          for (int j = 0; j < n; ++j) sums[j] += load(here + j * step) * weights;
        }
      transpose(sums);
#pragma GCC unroll kUnroll
      for (int half = n / 2; half > 0; half /= 2)
#pragma GCC unroll kUnroll
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
      store(c + first, sums[0] + *static_cast<const T*>(call.start));
    }
  }
}

// ---- wgrad -------------------------------------------------------------------------------------

// A row of windows.
template <class A, class T, int rows, int taps>
struct WindowRow {
  const A* a[taps];
  const T* b[rows];
  int64_t step;

  // The side that has fewer vectors is held in registers.
  CONVTBW_INLINE void add(int64_t i, Vector<T> (&sums)[rows][taps]) const {
    if constexpr (rows <= taps) {
      T held[rows];
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) held[r] = b[r][i];
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) {
        const Vector<T> here = loaded(load(a[t] + i * step));
#pragma GCC unroll kUnroll
        for (int r = 0; r < rows; ++r) sums[r][t] += here * held[r];
      }
    } else {
      Vector<T> held[taps];
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) held[t] = loaded(load(a[t] + i * step));
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) {
        const T here = b[r][i];
#pragma GCC unroll kUnroll
        for (int t = 0; t < taps; ++t) sums[r][t] += held[t] * here;
      }
    }
  }
};

template <class A, class T, int rows, int taps>
void window_taps(const WindowTaps& call) {
  Vector<T> sums[rows][taps];
  clear_sums(sums);
  const void* const* a_rows = call.a_rows;
  for (int64_t row = 0; row < call.rows; ++row, a_rows += call.a_row) {
    WindowRow<A, T, rows, taps> here;
    here.step = call.step;
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t)
      here.a[t] = static_cast<const A*>(a_rows[call.taps[t].row]) + call.taps[t].a;
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) here.b[r] = static_cast<const T*>(call.b_rows[row - r]) + call.b;
    int64_t i = 0;
    if (call.ahead) {
      // Rows of a are at a constant distance, but for those of zeros.
      const int64_t ahead =
          static_cast<const char*>(a_rows[call.a_row]) - static_cast<const char*>(a_rows[0]);
      for (; i + 2 <= call.count; i += 2) {
        // Of two windows, in turn: mostly they share a cache line.
#pragma GCC unroll kUnroll
        for (int t = 0; t < taps; ++t)
          __builtin_prefetch(
              reinterpret_cast<const char*>(here.a[t] + (i + t % 2) * call.step) + ahead, 0, 2);
        here.add(i, sums);
        here.add(i + 1, sums);
      }
    }
    for (; i < call.count; ++i) here.add(i, sums);
  }
  add_sums<T>(sums, static_cast<T*>(call.sums), call.sums_row);
}

template <class A, class T, int rows, int... taps>
constexpr void fill_window_taps(TapsFunctions<WindowTaps>& functions,
                                std::integer_sequence<int, taps...>) {
  ((functions.at[rows][taps + 1] = window_taps<A, T, rows, taps + 1>), ...);
}

template <class A, class T, int... rows>
constexpr TapsFunctions<WindowTaps> window_taps_functions(std::integer_sequence<int, rows...>) {
  TapsFunctions<WindowTaps> functions{};
  (fill_window_taps<A, T, rows + 1>(functions,
                                    std::make_integer_sequence<int, kMaxPlaneTaps[rows + 1]>()),
   ...);
  return functions;
}

template <class A, class T>
constexpr TapsFunctions<WindowTaps> kWindowTaps =
    window_taps_functions<A, T>(std::make_integer_sequence<int, kMaxTapRows>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
