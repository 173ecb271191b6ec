// wgrad of pixels that are dealt to two vectors in registers (kernels.h, DealtTaps). As in tile.h,
// all loops over accumulators are unrolled by pragma to keep them in registers. Included by
// kernels.cpp alone.
#pragma once

#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/planes.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Two vectors of neighbouring pixels.
template <class T>
struct DealtPixels {
  Vector<T> halves[2];  // the even ones, the odd ones

  CONVTBW_INLINE explicit DealtPixels(const Dealt<T>& dealt) : halves{dealt.even, dealt.odd} {}

  // Without those of the first lanes.
  CONVTBW_INLINE void clear(int64_t count) {
    using Bits = decltype(halves[0] == halves[0]);
#pragma GCC unroll kUnroll
    for (int h = 0; h < 2; ++h)
      halves[h] =
          reinterpret_cast<Vector<T>>(reinterpret_cast<Bits>(halves[h]) ^
                                      reinterpret_cast<Bits>(first_lanes(halves[h], count)));
  }

  // Against the windows that meet them: tap m meets the even or the odd ones, in turn.
  template <int odd, int rows, int taps>
  CONVTBW_INLINE void add(const T* const (&b)[rows], int64_t i, Vector<T> (&sums)[rows][taps]) {
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
      for (int w = 0; w <= (taps - 1 + odd) / 2; ++w) {
        const Vector<T> window = loaded(load(b[r] + i - w));
#pragma GCC unroll kUnroll
        for (int half = 0; half < 2; ++half) {
          const int tap = 2 * w + half - odd;
          if (tap >= 0 && tap < taps) sums[r][tap] += halves[half] * window;
        }
      }
  }
};

template <int odd, class A, class T, int rows, int taps>
void dealt_taps(const DealtTaps& call) {
  constexpr int n = kLanes<T>;
  Vector<T> sums[rows][taps];
  clear_sums(sums);
  for (int64_t row = 0; row < call.rows; ++row) {
    const A* a = static_cast<const A*>(call.a) + row * call.a_row;
    const T* b[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) b[r] = static_cast<const T*>(call.b_rows[row - r]) + call.b;
    int64_t i = 0, left = call.count;
    for (; left >= 2 * n; left -= 2 * n, a += 2 * n, i += n) {
      if (call.a_ahead)
#pragma GCC unroll kUnroll
        for (int j = 0; j < 2 * n; j += 64 / sizeof(A))
          __builtin_prefetch(a + j + call.a_ahead, 0, 2);
      DealtPixels<T>(load_dealt(a)).template add<odd>(b, i, sums);
    }
    if (left == 0) continue;
    if (call.count >= 2 * n && left % 2 == 0) {  // overlapping those before
      const int64_t before = n - left / 2;
      DealtPixels<T> last(load_dealt(a - 2 * before));
      last.clear(before);
      last.template add<odd>(b, i - before, sums);
    } else {
      const int64_t some = smaller(left, n);
      DealtPixels<T> last(deal<T>(load_some(a, some), load_some(a + some, left - some)));
      last.template add<odd>(b, i, sums);
    }
  }
  add_sums<T>(sums, static_cast<T*>(call.sums), call.sums_row);
}

template <class A, class T, int rows, int... taps>
constexpr void fill_dealt_taps(DealtTapsFunctions& functions, std::integer_sequence<int, taps...>) {
  ((functions.at[0][rows][taps + 1] = dealt_taps<0, A, T, rows, taps + 1>), ...);
  ((functions.at[1][rows][taps + 1] = dealt_taps<1, A, T, rows, taps + 1>), ...);
}

template <class A, class T, int... rows>
constexpr DealtTapsFunctions dealt_taps_functions(std::integer_sequence<int, rows...>) {
  DealtTapsFunctions functions{};
  (fill_dealt_taps<A, T, rows + 1>(functions,
                                   std::make_integer_sequence<int, kMaxDealtTaps[rows + 1]>()),
   ...);
  return functions;
}

template <class A, class T>
constexpr DealtTapsFunctions kDealtTaps =
    dealt_taps_functions<A, T>(std::make_integer_sequence<int, kMaxDealtRows>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
