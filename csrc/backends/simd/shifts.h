// Sums of rows that are shifted against each other (kernels.h, ShiftedSum). Included by kernels.cpp
// alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Adds to every second place, or writes it; those between keep what they hold. One by one,
// transposed windows of stride 2 took 1.1 to 1.3 times as long.
template <int vectors, class T>
CONVTBW_INLINE void store_every_second(T* to, const Vector<T> (&sums)[vectors], bool accumulate) {
  constexpr int n = kLanes<T>;
  constexpr auto lower = [](int lanes, int lane) { return lane % 2 ? lane : lanes + lane / 2; };
  constexpr auto upper = [](int lanes, int lane) {
    return lane % 2 ? lane : lanes + lanes / 2 + lane / 2;
  };
  constexpr auto every_second = [](int lanes, int lane) { return lane % 2 ? lane : lanes + lane; };
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v, to += 2 * n) {
    const Vector<T> before = load(to), behind = load(to + n);
    const Vector<T> first = shuffle<lower>(before, sums[v]),
                    second = shuffle<upper>(behind, sums[v]);
    store(to, accumulate ? shuffle<every_second>(before, before + first) : first);
    store(to + n, accumulate ? shuffle<every_second>(behind, behind + second) : second);
  }
}

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
  const int64_t left = call.count - first;
  if (call.to_step == 2 && left >= vectors * n)
    return store_every_second<vectors>(to, sums, call.accumulate);
  T some[vectors * n];
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v) store(some + v * n, sums[v]);
  const int64_t count = left < vectors * n ? left : vectors * n;
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
