// Copies of rows of neighbouring pixels (kernels.h, PlaneCopy). Included by kernels.cpp alone.
#pragma once

#include <utility>

#include "backends/simd/copy.h"
#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <class From>
void copy_plane(From from, const PlaneCopy& call) {
  using T = typename From::Unit;
  constexpr int n = kLanes<T>;
  T* to = static_cast<T*>(call.to);
  const bool joined = call.from_row == call.count && call.to_row == call.count;
  const int64_t rows = joined ? 1 : call.rows, count = joined ? call.rows * call.count : call.count;
  for (int64_t row = 0; row < rows; ++row, from = from.at(call.from_row), to += call.to_row) {
    int64_t i = 0;
    for (; i + n <= count; i += n) store(to + i, from.at(i).all());
    if (i == count) continue;
    if (i)
      store(to + count - n, from.at(count - n).all());
    else
      store_some(to, from.some(count), count);
  }
}

template <class From>
void deal_plane(From from, const PlaneCopy& call) {
  using T = typename From::Unit;
  constexpr int n = kLanes<T>;
  T *even = static_cast<T*>(call.to), *odd = static_cast<T*>(call.odd_to);
  const int64_t pairs = call.count / 2;
  for (int64_t row = 0; row < call.rows; ++row) {
    int64_t i = 0;
    for (; pairs >= n && i < pairs; i += n) {
      const int64_t first = smaller(i, pairs - n);
      const Dealt<T> dealt = from.at(2 * first).dealt();
      store(even + first, dealt.even);
      store(odd + first, dealt.odd);
    }
    for (; i < pairs; ++i) {
      even[i] = from.at(2 * i).some(1)[0];
      odd[i] = from.at(2 * i + 1).some(1)[0];
    }
    if (call.count % 2) even[pairs] = from.at(2 * pairs).some(1)[0];
    from = from.at(call.from_row);
    even += call.to_row;
    odd += call.to_row;
  }
}

template <class To, int parts>
void take_plane_turns(const PlaneTurns& call) {
  using T = SumOf<To>;
  constexpr int n = kLanes<T>;
  const T* from = static_cast<const T*>(call.from);
  To* to = static_cast<To*>(call.to);
  for (int64_t row = 0; row < call.rows; ++row, from += call.from_row, to += call.to_row)
    for (int64_t first = 0; first < call.count; first += n * parts) {
      Vector<T> lines[parts];
#pragma GCC unroll kUnroll
      for (int part = 0; part < parts; ++part)
        lines[part] = load(from + part * call.from_part + first / parts);
      take_turns(lines);
      const int64_t left = call.count - first;
#pragma GCC unroll kUnroll
      for (int64_t i = 0; i < n * parts; i += 64 / sizeof(To))
        __builtin_prefetch(to + first + call.to_ahead + i, 1);
#pragma GCC unroll kUnroll
      for (int part = 0; part < parts; ++part) {
        if (left >= (part + 1) * n)
          store(to + first + part * n, lines[part]);
        else if (left > part * n)
          store_some(to + first + part * n, lines[part], left - part * n);
      }
    }
}

template <class To, int... before>
constexpr PlaneTurnsFunctions plane_turns_functions(std::integer_sequence<int, before...>) {
  PlaneTurnsFunctions functions{};
  ((functions.at[before + 1] = take_plane_turns<To, before + 1>), ...);
  return functions;
}

template <class To>
constexpr PlaneTurnsFunctions kPlaneTurns =
    plane_turns_functions<To>(std::make_integer_sequence<int, kMaxTurnParts>());

template <class Element>
void plane_copy(const PlaneCopy& call) {
  copy_plane(Elements<Element>{static_cast<const Element*>(call.from)}, call);
}

template <class Element>
void plane_deal(const PlaneCopy& call) {
  deal_plane(Elements<Element>{static_cast<const Element*>(call.from)}, call);
}

// f(what reads the pairs)
template <class F>
CONVTBW_INLINE void with_pairs(const PlaneCopy& call, const F& f) {
  const bfloat16* const p = static_cast<const bfloat16*>(call.from);
  if (call.halves == Halves::both)
    f(SplitPairs<Halves::both>{p, call.second});
  else
    f(SplitPairs<Halves::first>{p, 0});
}

inline void plane_copy_pairs(const PlaneCopy& call) {
  with_pairs(call, [&](const auto& from) { copy_plane(from, call); });
}

inline void plane_deal_pairs(const PlaneCopy& call) {
  with_pairs(call, [&](const auto& from) { deal_plane(from, call); });
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
