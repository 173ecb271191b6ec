// Loops whose lanes are channels on every side (kernels.h, LaneRow, LaneTaps, Spread). As in
// tile.h, all loops over accumulators are unrolled by pragma to keep them in registers. Included by
// kernels.cpp alone.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/tile.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Accumulators that leave 4 of 16 registers for operands. 8 hide the latency of a multiply-add.
constexpr int kLaneSums = 12;

// ---- fprop, dgrad ------------------------------------------------------------------------------

// Into the first-level cache to be written, or the second to be read.
template <bool write, int pixels, int lanes, class Element>
CONVTBW_INLINE void prefetch(const Element* p, int64_t step) {
  constexpr int line = 64 / sizeof(Element);
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels; ++i)
#pragma GCC unroll kUnroll
    for (int lane = 0; lane < lanes; lane += line)
      __builtin_prefetch(p + i * step + lane, write, write ? 3 : 2);
}

enum class TapKind { one, pair, spread, spread_pair, broadcast };

// Whether lanes meet others of their group than themselves.
template <TapKind kind>
constexpr bool kSpreads = kind != TapKind::one && kind != TapKind::pair;

// How lanes of a are loaded: as they lie,
template <TapKind kind>
struct LaneLoads {
  explicit LaneLoads(const SpreadLanes&) {}
  template <class A>
  CONVTBW_INLINE auto all(const A* p) const {
    return load(p);
  }
  template <class A>
  CONVTBW_INLINE auto all_beside_sums(const A* p) const {
    return load_beside_sums(p);
  }
};

// spread, once they are in a register,
template <>
struct LaneLoads<TapKind::spread> {
  const Words index;

  explicit LaneLoads(const SpreadLanes& lanes)
      : index(load(kSpreadIndex.lanes[lanes.group][lanes.plane])) {}
  CONVTBW_INLINE Floats all(const float* p) const { return spread_lanes(load(p), index); }
  CONVTBW_INLINE Floats all_beside_sums(const float* p) const { return all(p); }
};

// or all from one element.
template <>
struct LaneLoads<TapKind::broadcast> {
  explicit LaneLoads(const SpreadLanes&) {}
  CONVTBW_INLINE Floats all(const float* p) const { return *p - Floats{}; }
  CONVTBW_INLINE Floats all_beside_sums(const float* p) const { return all(p); }
};

// What is loaded of a pixel and of weights, and how they are multiplied: one tap,
template <class T, TapKind kind = TapKind::one>
struct OneTap {
  const LaneLoads<kind> loads;

  explicit OneTap(const SpreadLanes& lanes = {}) : loads(lanes) {}
  template <class From>
  CONVTBW_INLINE Vector<T> pixel(const From* p, int64_t) const {
    return loads.all(p);
  }
  template <class From>
  CONVTBW_INLINE Vector<T> pixel_of_run(const From* p, int64_t) const {
    return loads.all_beside_sums(p);
  }
  static CONVTBW_INLINE Vector<T> weights(const T* w) { return load(w); }
  static CONVTBW_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> w, Vector<T> sum) {
    return sum + a * w;
  }
};

// two taps of bfloat16 whose weights are pairs,
struct TwoTaps {
  static CONVTBW_INLINE Words pixel(const bfloat16* p, int64_t second) {
    return paired(&p->bits, &p[second].bits);
  }
  static CONVTBW_INLINE Words pixel_of_run(const bfloat16* p, int64_t second) {
    return pixel(p, second);
  }
  static CONVTBW_INLINE Words weights(const float* w) { return reinterpret_cast<Words>(load(w)); }
  static CONVTBW_INLINE Floats multiply_add(Words a, Words w, Floats sum) {
    return Bfloat16Pairs::multiply_add(a, w, sum);
  }
};

// two channels of bfloat16 that are spread with those of their groups,
struct TwoChannels : TwoTaps {
  const Words index;

  explicit TwoChannels(const SpreadLanes& lanes)
      : index(load(kSpreadIndex.pairs[lanes.group][lanes.plane])) {}
  CONVTBW_INLINE Words pixel(const bfloat16* p, int64_t) const {
    return spread_pairs(&p->bits, index);
  }
  CONVTBW_INLINE Words pixel_of_run(const bfloat16* p, int64_t) const { return pixel(p, 0); }
};

// or one of two taps: an infinity, multiplied by a tap that is not there, would be NaN.
template <Halves halves>
struct OneOfTwoTaps : OneTap<float> {
  static CONVTBW_INLINE Floats weights(const float* w) {
    const Words pairs = TwoTaps::weights(w);
    return reinterpret_cast<Floats>(halves == Halves::first ? pairs << 16 : pairs & 0xffff0000);
  }
};

// f(how a run's taps are multiplied)
template <TapKind kind, class T, class F>
CONVTBW_INLINE void with_taps_of(const LaneRow& row, const LaneTapRun& run, const F& f) {
  if constexpr (kind == TapKind::spread_pair)
    f(TwoChannels({row.group, run.plane}));
  else if constexpr (kind != TapKind::pair)
    f(OneTap<T, kind>({row.group, run.plane}));
  else if (run.halves == Halves::both)
    f(TwoTaps());
  else if (run.halves == Halves::first)
    f(OneOfTwoTaps<Halves::first>());
  else
    f(OneOfTwoTaps<Halves::second>());
}

// Which lane of a the lanes from `lane` on meet first.
template <TapKind kind>
CONVTBW_INLINE int64_t met_lane(const LaneRow& row, int64_t lane) {
  if constexpr (kind == TapKind::broadcast)
    return (row.group_lane + lane) / row.group * row.planes;
  else
    return lane;
}

// How many lanes from `lane` on may be loaded together.
template <TapKind kind>
CONVTBW_INLINE int64_t lanes_together(const LaneRow& row, int64_t lane) {
  const int64_t left = row.lanes - lane;
  if constexpr (kind == TapKind::broadcast)
    return smaller(left, row.group - (row.group_lane + lane) % row.group);
  else
    return left;
}

// f(lane, window, windows) for every vector of lanes, of n of them, the last one overlapping, and
// every piece of up to `most` windows: all pieces of `together` lanes before the next lanes.
template <int64_t n, class F>
CONVTBW_INLINE void for_each_piece(int64_t lanes, int64_t together, int64_t windows, int64_t most,
                                   const F& f) {
  const int64_t pieces = (windows + most - 1) / most;
  for (int64_t first = 0; first < lanes; first += together)
    for (int64_t piece = 0, done = 0, count; piece < pieces; ++piece, done += count) {
      count = (windows - done) / (pieces - piece);  // as even as can be
      for (int64_t lane = first; lane < smaller(first + together, lanes); lane += n)
        f(smaller(lane, lanes - n), done, count);
    }
}

// Tap by tap. Elements are converted where they are loaded and stored.
template <class From, class To, TapKind kind, int pixels, int vectors, class T = SumOf<To>>
void lane_pixels(const LaneRow& row, const From* a, const T* w, const T* start, To* c) {
  constexpr int n = kLanes<T>;
  const int64_t a_step = row.a_step, c_step = row.c_step;
  Vector<T> sums[pixels][vectors];
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll kUnroll
    for (int i = 0; i < pixels; ++i) sums[i][v] = load(start + v * n);
  // A register for each pixel, or GCC adds the steps up for every tap.
  const From* at[pixels];
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels; ++i) {
    at[i] = a + i * a_step;
    asm("" : "+r"(at[i]));
  }
  for (int64_t i = 0; i < row.ahead_count; ++i)
    prefetch<false, pixels, vectors * n>(a + row.ahead[i], a_step);
  if (row.c_ahead) prefetch<true, pixels, vectors * n>(c + row.c_ahead, c_step);
  const int64_t second = row.second;
  // From one vector to the next. Those of a group all meet the same.
  constexpr int64_t a_vector = kind == TapKind::broadcast ? 0 : n;
  const int64_t w_vector = kind == TapKind::broadcast ? n * row.w_lane : n;
  for (const LaneTapRun *tap = row.runs, *end = tap + row.run_count; tap != end; ++tap) {
    with_taps_of<kind, T>(row, *tap, [&](auto taps) __attribute__((always_inline)) {
      decltype(taps.weights(w)) weights[vectors];
#pragma GCC unroll kUnroll
      for (int v = 0; v < vectors; ++v) weights[v] = taps.weights(w + tap->w + v * w_vector);
#pragma GCC unroll kUnroll
      for (int i = 0; i < pixels; ++i)
#pragma GCC unroll kUnroll
        for (int v = 0; v < vectors; ++v)
          sums[i][v] = taps.multiply_add(taps.pixel(at[i] + tap->a + v * a_vector, second),
                                         weights[v], sums[i][v]);
    });
  }
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels; ++i)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) store(c + i * c_step + v * n, sums[i][v]);
}

template <class From, class To, class T = SumOf<To>>
using LanePixels = void (*)(const LaneRow&, const From*, const T*, const T*, To*);

// Pixels of 1, 2 and 4 vectors: accumulators and weights fill 16 registers, and what is converted
// or broadcast takes another, what is spread two.
template <class From, TapKind kind, int vectors>
constexpr int kMaxPixels = [] {
  if (vectors == 1) return 12;
  if (vectors == 4) return kSpreads<kind> ? 2 : 3;
  return sizeof(From) == 2 || kSpreads<kind> ? 6 : 7;
}();

template <class From, class To, TapKind kind, int vectors, int... pixels>
constexpr std::array<LanePixels<From, To>, sizeof...(pixels)> lane_pixels_by_count(
    std::integer_sequence<int, pixels...>) {
  return {lane_pixels<From, To, kind, pixels + 1, vectors>...};
}

// Functions for 1, 2, ... pixels.
template <class From, class To, TapKind kind, int vectors>
constexpr auto kLanePixels = lane_pixels_by_count<From, To, kind, vectors>(
    std::make_integer_sequence<int, kMaxPixels<From, kind, vectors>>());

// A run of taps: each pixel is loaded, and converted, once for all of its results.
template <int taps, class Taps, int pixels, class From, class T>
CONVTBW_INLINE void add_run(const Taps& of, const From* a, int64_t a_step, int64_t second,
                            const T* w, int64_t w_step, Vector<T> (&sums)[pixels]) {
  // Or GCC computes what runs of all lengths have in common before it asks for theirs, and
  // accumulators leave their registers.
  asm volatile("" : "+r"(a));
  decltype(of.weights(w)) weights[taps];
#pragma GCC unroll kUnroll
  for (int t = 0; t < taps; ++t) weights[t] = of.weights(w + t * w_step);
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels + taps - 1; ++i, a += a_step) {
    auto pixel = of.pixel_of_run(a, second);
    if constexpr (kRegisters > 16) pixel = loaded(pixel);  // with 16 GCC 12 spills it
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t)
      if (i >= t && i - t < pixels) sums[i - t] = of.multiply_add(pixel, weights[t], sums[i - t]);
  }
}

// Of one vector, in runs of `most` taps or one less.
template <class From, class To, TapKind kind, int most, int pixels, class T = SumOf<To>>
void lane_runs(const LaneRow& row, const From* a, const T* w, const T* start, To* c) {
  const int64_t a_step = row.a_step, c_step = row.c_step, w_step = row.w_step, second = row.second;
  Vector<T> sums[pixels];
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels; ++i) sums[i] = load(start);
  for (const LaneTapRun *run = row.runs, *end = run + row.run_count; run != end; ++run) {
    const From* const from = a + run->a;
    const T* const weights = w + run->w;
    with_taps_of<kind, T>(row, *run, [&](auto taps) __attribute__((always_inline)) {
      if (run->taps == most)
        add_run<most>(taps, from, a_step, second, weights, w_step, sums);
      else
        add_run<most - 1>(taps, from, a_step, second, weights, w_step, sums);
    });
  }
#pragma GCC unroll kUnroll
  for (int i = 0; i < pixels; ++i) store(c + i * c_step, sums[i]);
}

// Accumulators, weights and a pixel fill 16 registers. What is spread takes one for its index, and
// GCC 12 another, also where a pixel is broadcast. With 32 these share what they load among as many
// as the loop over positions is unrolled for: 1.05 to 1.2 times as fast (Zen 5).
template <TapKind kind, int taps>
constexpr int kMaxRunPixels = [] {
  constexpr int kPositions = 16;
  if (kRegisters > 16 && kSpreads<kind>) return kPositions + 1 - taps;
  return 15 - taps - (kind == TapKind::broadcast ? 1 : kSpreads<kind> ? 2 : 0);
}();

template <class From, class To, TapKind kind, int most, int... pixels>
constexpr std::array<LanePixels<From, To>, sizeof...(pixels)> lane_runs_by_pixels(
    std::integer_sequence<int, pixels...>) {
  return {lane_runs<From, To, kind, most, pixels + kMinRunPixels>...};
}

// Functions for so many pixels, one more, ... As even as can be, no piece of a row has fewer.
template <class From, class To, TapKind kind, int most>
constexpr auto kLaneRuns = lane_runs_by_pixels<From, To, kind, most>(
    std::make_integer_sequence<int, kMaxRunPixels<kind, most> - kMinRunPixels + 1>());

// The lanes of a cache line before the next line, and of few pixels at a time: a line is read for
// every vector of it.
template <class From, class To, TapKind kind, int taps>
void lane_row_in_runs(const LaneRow& row) {
  using T = SumOf<To>;
  constexpr int64_t n = kLanes<T>, line = 64 / sizeof(From), most = kMaxRunPixels<kind, taps>;
  const T *const w = static_cast<const T*>(row.w), *const start = static_cast<const T*>(row.start);
  const int64_t pieces = (row.pixels + most - 1) / most;
  for (int64_t first = 0; first < row.lanes; first += line)
    for (int64_t piece = 0, done = 0, pixels; piece < pieces; ++piece, done += pixels) {
      pixels = (row.pixels - done) / (pieces - piece);  // as even as can be
      const From* const a = static_cast<const From*>(row.a) + done * row.a_step;
      To* const c = static_cast<To*>(row.c) + done * row.c_step;
      for (int64_t p = 0; p < pixels; ++p) {
        for (int64_t i = 0; i < row.ahead_count; ++i)
          prefetch<false, 1, 1>(a + met_lane<kind>(row, first) + row.ahead[i] + p * row.a_step, 0);
        if (row.c_ahead) prefetch<true, 1, 1>(c + first + row.c_ahead + p * row.c_step, 0);
      }
      for (int64_t lane = first; lane < smaller(first + line, row.lanes); lane += n) {
        const int64_t at = smaller(lane, row.lanes - n);
        kLaneRuns<From, To, kind, taps>[pixels - kMinRunPixels](
            row, a + met_lane<kind>(row, at), w + at* row.w_lane, start + at, c + at);
      }
    }
}

// All pixels of a few lanes before the next lanes: their weights stay in the first-level cache.
template <class From, class To, TapKind kind = TapKind::one>
void lane_row(const LaneRow& row) {
  if (row.most_taps == 3) return lane_row_in_runs<From, To, kind, 3>(row);
  if (row.most_taps == 4) return lane_row_in_runs<From, To, kind, 4>(row);
  using T = SumOf<To>;
  constexpr int n = kLanes<T>;
  const auto run = [&]<int vectors>(std::integral_constant<int, vectors>, int64_t lane) {
    constexpr int64_t most = kMaxPixels<From, kind, vectors>;
    const From* a = static_cast<const From*>(row.a) + met_lane<kind>(row, lane);
    const T *w = static_cast<const T*>(row.w) + lane * row.w_lane,
            *start = static_cast<const T*>(row.start) + lane;
    To* c = static_cast<To*>(row.c) + lane;
    int64_t left = row.pixels;
    for (int64_t pieces = (left + most - 1) / most; pieces; --pieces) {
      const int64_t pixels = left / pieces;  // even pieces: no short one at the end
      kLanePixels<From, To, kind, vectors>[pixels - 1](row, a, w, start, c);
      a += pixels * row.a_step;
      c += pixels * row.c_step;
      left -= pixels;
    }
  };
  for (int64_t lane = 0; lane < row.lanes;) {
    const int64_t whole = lanes_together<kind>(row, lane) / n;
    if (whole >= 4 && row.pixels <= kMaxPixels<From, kind, 4>) {
      run(std::integral_constant<int, 4>(), lane);
      lane += 4 * n;
    } else if (whole >= 2) {
      run(std::integral_constant<int, 2>(), lane);
      lane += 2 * n;
    } else {
      run(std::integral_constant<int, 1>(), whole ? lane : row.lanes - n);
      lane += n;
    }
  }
}

// ---- wgrad -------------------------------------------------------------------------------------

// Asks for a line of elements that lie far away, to be read later. float32 twice: Zen 5 forgets
// some of what it is asked while much is on its way. Time over that of asking once (8 and 16
// lanes): 3x3x3 0.81 to 0.98 and 0.9 to 0.96, 3x3 0.93 to 0.97 and 0.99, others 0.98 to 1.04; all
// of them on Zen 4 0.83 to 1.2, 0.99 in the mean; 16 bits, of which half as many lines are read in
// a time, 0.95 to 1.15. Not so 4x4 of stride 2 (0.72 to 1.15), nor planes, copies and what is only
// read for results (0.9 to 1.5).
template <int locality, class T>
CONVTBW_INLINE void ask_far(const void* line) {
  __builtin_prefetch(line, 0, locality);
  if constexpr (sizeof(T) == 4) __builtin_prefetch(line, 0, locality);
}

// Sums of rows of taps to those in memory, where taps lie `tap` units apart.
template <class T, int rows, int taps>
CONVTBW_INLINE void add_tap_rows(const Vector<T> (&sums)[rows][taps], const LaneTapRow* row,
                                 int64_t tap, T* to) {
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      T* const sum = to + row[r].w + t * tap;
      store(sum, load(sum) + sums[r][t]);
    }
}

template <class T, int vectors, int rows, int taps>
struct LaneSums {
  Vector<T> sums[vectors][rows][taps];

  template <class Loads, class A, class B>
  CONVTBW_INLINE void step(const Loads& loads, const A* const (&a)[rows], int64_t a_tap,
                           const B* b) {
    Vector<T> right[vectors];
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) right[v] = loaded(load(b + v * kLanes<T>));
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t)
#pragma GCC unroll kUnroll
        for (int v = 0; v < vectors; ++v)
          sums[v][r][t] += loads.all(a[r] + t * a_tap + v * kLanes<T>) * right[v];
  }
};

template <class A, class B, TapKind kind, int vectors, int rows, int taps, class T = SumOf<B>>
void lane_taps(const LaneTaps& call) {
  const LaneLoads<kind> loads(call.spread);
  constexpr int n = kLanes<T>;
  // Where there are few taps, pixels take turns in several sets of sums: chains of multiply-adds
  // must be many to hide their latency.
  constexpr int sets = std::clamp(kLaneSums / (vectors * rows * taps), 1, 4);
  LaneSums<T, vectors, rows, taps> sets_of[sets];
  T* const result = static_cast<T*>(call.sums);
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t)
#pragma GCC unroll kUnroll
        for (int s = 0; s < sets; ++s) sets_of[s].sums[v][r][t] = Vector<T>{};
  const int64_t a_tap = call.a_tap, a_step = call.a_step, b_step = call.b_step;
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const A* a[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) a[r] = static_cast<const A*>(call.a) + run->a + call.rows[r].a;
    const B* b = static_cast<const B*>(call.b) + run->b;
    const auto next = [&] {
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) a[r] += a_step;
      b += b_step;
    };
    int64_t left = run->steps;
    if (call.b_ahead) {
      const int64_t turn = call.ahead_turn * (left - 1);
      const A* a_ahead = a[0] + turn * call.a_ahead_step;
      const B* b_ahead = b + turn * call.b_ahead_step;
      for (; left > 0; --left, next()) {
        if (call.ahead_to_first) {
          for (int64_t i = 0; i < call.a_ahead_count; ++i) ask_far<3, A>(a_ahead + call.a_ahead[i]);
          ask_far<3, B>(b_ahead + call.b_ahead);
        } else {
          for (int64_t i = 0; i < call.a_ahead_count; ++i) ask_far<2, A>(a_ahead + call.a_ahead[i]);
          ask_far<2, B>(b_ahead + call.b_ahead);
        }
        a_ahead += call.a_ahead_step;
        b_ahead += call.b_ahead_step;
        sets_of[0].step(loads, a, a_tap, b);
      }
    }
    for (; left >= sets; left -= sets) {
#pragma GCC unroll kUnroll
      for (int s = 0; s < sets; ++s, next()) sets_of[s].step(loads, a, a_tap, b);
    }
    for (; left > 0; --left, next()) sets_of[0].step(loads, a, a_tap, b);
  }
#pragma GCC unroll kUnroll
  for (int v = 0; v < vectors; ++v)
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) {
#pragma GCC unroll kUnroll
        for (int s = 1; s < sets; ++s) sets_of[0].sums[v][r][t] += sets_of[s].sums[v][r][t];
        T* const sum = result + v * call.sums_vector + call.rows[r].w + t * n;
        store(sum, load(sum) + sets_of[0].sums[v][r][t]);
      }
}

template <class A, class B, TapKind kind, int vectors, int rows, int... tap>
constexpr void fill_lane_taps(LaneTapsFunctions& functions, std::integer_sequence<int, tap...>) {
  ((functions.at[vectors][rows][tap + 1] = lane_taps<A, B, kind, vectors, rows, tap + 1>), ...);
}

template <class A, class B, TapKind kind, int vectors, int... row>
constexpr void fill_lane_rows(LaneTapsFunctions& functions, std::integer_sequence<int, row...>) {
  (fill_lane_taps<A, B, kind, vectors, row + 1>(
       functions, std::make_integer_sequence<int, kMaxLaneTaps[vectors] / (row + 1)>()),
   ...);
}

// Two vectors together leave no register for the index of what is spread, and what is broadcast
// is for one.
template <class A, class B, TapKind kind>
constexpr LaneTapsFunctions lane_taps_functions() {
  LaneTapsFunctions result{};
  constexpr auto rows = std::make_integer_sequence<int, kMaxLaneRows>();
  fill_lane_rows<A, B, kind, 1>(result, rows);
  if constexpr (kind == TapKind::one) fill_lane_rows<A, B, kind, 2>(result, rows);
  return result;
}

template <class A, class B, TapKind kind = TapKind::one>
constexpr LaneTapsFunctions kLaneTaps = lane_taps_functions<A, B, kind>();

// ---- spreading ---------------------------------------------------------------------------------

// Positions of one plane; load(from, vector) is what is read.
template <class From, class To, class Index, class Load>
CONVTBW_INLINE void spread_positions(const Spread& call, const From* from, To* to,
                                     int64_t positions, int vectors, Index index,
                                     const Load& load) {
  constexpr int n = kLanes<To>;
  if (vectors == 1) {
    for (int64_t i = 0; i < positions; ++i, from += call.from_step, to += call.to_step)
      store(to, Vector<To>(__builtin_shuffle(load(from, 0), index)));
    return;
  }
  for (int64_t i = 0; i < positions; ++i, from += call.from_step, to += call.to_step) {
    Vector<To> lanes = __builtin_shuffle(load(from, 0), load(from, 1), index);
    for (int v = 2; v < vectors; ++v)
      lanes = index >= v * n ? __builtin_shuffle(load(from, v), index) : lanes;
    store(to, lanes);
  }
}

template <class From, class To = SumOf<From>>
void spread(const Spread& call) {
  constexpr int n = kLanes<To>;
  decltype(Vector<To>{} == Vector<To>{}) index;  // integers as wide as To
  for (int i = 0; i < n; ++i) index[i] = call.index[i];
  const int vectors = call.index[n - 1] / n + 1;
  for (int64_t plane = 0; plane < call.planes; ++plane) {
    const From* const from = static_cast<const From*>(call.from) + plane;
    To* const to = static_cast<To*>(call.to) + plane * call.to_plane;
    const From* const end = from + (call.readable - plane);
    // Of the last positions there are no whole vectors.
    const int64_t left = call.readable - plane - vectors * n, step = call.from_step;
    const int64_t whole = left < 0    ? 0
                          : step == 0 ? call.positions
                                      : smaller(call.positions, left / step + 1);
    spread_positions(call, from, to, whole, vectors, index,
                     [](const From* p, int v)
                         __attribute__((always_inline)) { return load(p + v * n); });
    spread_positions(call, from + whole * step, to + whole * call.to_step, call.positions - whole,
                     vectors, index, [&](const From* p, int v) __attribute__((always_inline)) {
                       const int64_t some = end - (p + v * n);
                       return load_some(p + v * n, some < 0 ? 0 : smaller(some, n));
                     });
  }
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
