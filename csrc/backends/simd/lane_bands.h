// Bands: rows of results that are computed together, of windows that slide along them pixel by
// pixel (kernels.h, LaneBand). A column of pixels is met by all windows that reach it, so that
// neither a row nor a pixel is read again for each of them. As in tile.h, all loops over
// accumulators are unrolled by pragma to keep them in registers. Included by kernels.cpp alone.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/lanes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Accumulators, a pixel of each row, a weight and what sums start from fill the registers, with
// three to spare: 3x3 in 4 rows takes 1.08 times as long as in 6.
constexpr int most_band_rows(int taps) {
  return std::min((kRegisters - 5) / (taps + 1), kMaxBandRows);
}

// Sums of the windows that a column of a meets. sums[r][k]: of that whose last tap but k it is.
template <class From, class T, int taps, int rows>
struct BandColumn {
  const int64_t a_row, w_row, w_tap;
  Vector<T> sums[rows][taps];

  // `together` rows of taps.
  template <int together>
  CONVTBW_INLINE void add(const From* a, const T* w) {
    Vector<T> pixels[rows + together - 1];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows + together - 1; ++r) pixels[r] = load(a + r * a_row);
#pragma GCC unroll kUnroll
    for (int y = 0; y < together; ++y, w += w_row)
#pragma GCC unroll kUnroll
      for (int k = 0; k < taps; ++k) {
        const Vector<T> weight = loaded(load(w + (taps - 1 - k) * w_tap));
#pragma GCC unroll kUnroll
        for (int r = 0; r < rows; ++r) sums[r][k] += pixels[r + y] * weight;
      }
  }

  CONVTBW_INLINE void next(Vector<T> start) {
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll kUnroll
      for (int k = 0; k + 1 < taps; ++k) sums[r][k] = sums[r][k + 1];
      sums[r][taps - 1] = start;
    }
  }
};

// One vector of some windows. What a call says is read before: stores might change it, as far as
// GCC knows.
template <class From, class To, int taps, int rows, int together, class T = SumOf<To>>
void band_of_windows(const LaneBand& call, int64_t lane, int64_t window, int64_t windows) {
  BandColumn<From, T, taps, rows> column{call.a_row, call.w_row, call.w_tap, {}};
  const Vector<T> start = load(static_cast<const T*>(call.start) + lane);
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int k = 0; k < taps; ++k) column.sums[r][k] = start;
  const int64_t a_row = call.a_row, a_step = call.a_step, a_ahead = call.a_ahead;
  const int64_t c_row = call.c_row, c_step = call.c_step, c_ahead = call.c_ahead;
  const int64_t begin = call.begin - window, end = call.end - window, columns = windows + taps - 1;
  const LaneTapRow *const first = call.tap_rows, *const stop = first + call.tap_row_count;
  const From* a = static_cast<const From*>(call.a) + window * a_step + lane;
  const T* const w = static_cast<const T*>(call.w) + lane;
  To* c = static_cast<To*>(call.c) + (window - (taps - 1)) * c_step + lane;
  for (int64_t x = 0; x < columns; ++x, a += a_step, c += c_step) {
    if (begin <= x && x < end) {
      if (a_ahead)
#pragma GCC unroll kUnroll
        for (int r = 0; r < rows; ++r) __builtin_prefetch(a + a_ahead + r * a_row, 0, 3);
      for (const LaneTapRow* row = first; row != stop; ++row)
        column.template add<together>(a + row->a, w + row->w);
    }
    if (x >= taps - 1) {
      if (c_ahead)
#pragma GCC unroll kUnroll
        for (int r = 0; r < rows; ++r) __builtin_prefetch(c + c_ahead + r * c_row, 1);
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) store(c + r * c_row, column.sums[r][0]);
    }
    column.next(start);
  }
}

template <class From, class To, int taps, int together, int... rows>
constexpr auto bands_of_rows(std::integer_sequence<int, rows...>) {
  return std::array{band_of_windows<From, To, taps, rows + 1, together>...};
}

// By rows - 1.
template <class From, class To, int taps, int together>
constexpr auto kBandsOfRows = bands_of_rows<From, To, taps, together>(
    std::make_integer_sequence<int, most_band_rows(taps)>());

// The lanes of a cache line before the next line: where it is of several vectors, of so many
// windows that the first-level cache keeps what they read and write. But where each pixel lies in a
// page of its own, all lanes of a few windows: 3x3 of 1024 channels, 24x25, 0.65 of the time.
template <class From, class To, int taps>
void lane_band(const LaneBand& call) {
  constexpr int64_t n = kLanes<SumOf<To>>, line = 64 / sizeof(From);
  constexpr int64_t kLines = 512, kPage = 4096, kFewWindows = 8;
  auto function = kBandsOfRows<From, To, taps, 1>[call.rows - 1];
  if constexpr (taps == kRowsTogether)
    if (call.together == taps) function = kBandsOfRows<From, To, taps, taps>[call.rows - 1];
  const bool apart = call.a_step * int64_t{sizeof(From)} >= kPage;
  const int64_t rows = call.together == 1 ? call.tap_row_count + 2 * call.rows
                                          : call.tap_row_count * (call.rows + taps - 1) + call.rows;
  const int64_t most = apart      ? kFewWindows
                       : line > n ? std::max(kFewWindows, kLines / rows)
                                  : call.windows;
  for_each_piece<n>(call.lanes, apart ? call.lanes : line, call.windows, most,
                    [&](int64_t lane, int64_t window, int64_t windows) {
                      function(call, lane, window, windows);
                    });
}

template <class From, class To, int... taps>
constexpr LaneBandFunctions lane_band_functions(std::integer_sequence<int, taps...>) {
  LaneBandFunctions result{};
  ((result.max_rows[taps + kMinBandTaps] = most_band_rows(taps + kMinBandTaps),
    result.at[taps + kMinBandTaps] = lane_band<From, To, taps + kMinBandTaps>),
   ...);
  return result;
}

// Not with 16 registers, which hold the sums of a row or two: 3x3 1.0 to 1.25 of the time of
// lane_row(), 5x5 1.0 to 1.35, 7x7 1.3 to 1.6 (8 lanes, Zen 5).
template <class From, class To>
constexpr LaneBandFunctions kLaneBands = [] {
  if constexpr (kRegisters > 16)
    return lane_band_functions<From, To>(
        std::make_integer_sequence<int, kMaxBandTaps - kMinBandTaps + 1>());
  else
    return LaneBandFunctions{};
}();

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
