// Sums of rows that are shifted against each other (kernels.h, ShiftedSum). Included by kernels.cpp
// alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <int vectors, class T>
CONVTBW_INLINE void shifted_sum_of(const ShiftedSum& call, int64_t first) {
  constexpr int n = kLanes<T>;
  const T* from = static_cast<const T*>(call.from) + first;
  T* const to = static_cast<T*>(call.to) + first * call.to_step;
  Vector<T> sums[vectors];
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v)
    sums[v] = Vector<T>{} + (call.accumulate ? T{} : *static_cast<const T*>(call.start));
  for (int64_t row = 0; row < call.rows; ++row, from += call.step)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) sums[v] += load(from + v * n);
  if (call.to_step == 1) {
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v)
      store(to + v * n, call.accumulate ? load(to + v * n) + sums[v] : sums[v]);
    return;
  }
  T some[vectors * n];
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v) store(some + v * n, sums[v]);
  const int64_t left = call.count - first, count = left < vectors * n ? left : vectors * n;
  for (int64_t i = 0; i < count; ++i)
    to[i * call.to_step] = call.accumulate ? to[i * call.to_step] + some[i] : some[i];
}

template <class T>
void shifted_sum(const ShiftedSum& call) {
  constexpr int n = kLanes<T>;
  int64_t i = 0;
  for (; i + 3 * n < call.count; i += 4 * n) shifted_sum_of<4, T>(call, i);
  for (; i < call.count; i += n) shifted_sum_of<1, T>(call, i);
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
