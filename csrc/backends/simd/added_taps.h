// Sums of what overlapping windows have for a row of results (kernels.h, AddedTaps). Included by
// kernels.cpp alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// So many windows side by side: what they end with is written first, for it reaches into the next
// one.
template <int windows, class T>
CONVTBW_INLINE void added_taps_of(const AddedTaps& call, int64_t at, T* c) {
  constexpr int n = kLanes<T>;
  const auto terms = reinterpret_cast<const T* const*>(call.terms);
  const int64_t whole = call.term_count - call.part_count;
  for (int64_t i = (call.width - 1) / n * n; i >= 0; i -= n) {
    Vector<T> sums[windows];
    const Vector<T> start = load(static_cast<const T*>(call.start) + i);
#pragma GCC unroll kUnroll
    for (int w = 0; w < windows; ++w) sums[w] = start;
    for (int64_t t = 0; t < whole; ++t)
#pragma GCC unroll kUnroll
      for (int w = 0; w < windows; ++w) sums[w] += load(terms[t] + at + w * call.step + i);
    for (int64_t t = whole; t < call.term_count; ++t)
#pragma GCC unroll kUnroll
      for (int w = 0; w < windows; ++w)
        sums[w] += first_lanes(load(terms[t] + at + w * call.step + i), call.part - i);
#pragma GCC unroll kUnroll
    for (int w = 0; w < windows; ++w) store(c + w * call.width + i, sums[w]);
  }
}

template <class T>
void added_taps(const AddedTaps& call) {
  constexpr int kWindows = 4;
  T* c = static_cast<T*>(call.c);
  int64_t window = 0;
  for (; window + kWindows <= call.windows; window += kWindows, c += kWindows * call.width)
    added_taps_of<kWindows>(call, window * call.step, c);
  for (; window < call.windows; ++window, c += call.width)
    added_taps_of<1>(call, window * call.step, c);
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
