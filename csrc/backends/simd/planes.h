// Loops whose lanes are neighbouring pixels of one channel (kernels.h: PlaneRows, PlaneTaps and
// PlaneCopy). As in tile.h, all loops over accumulators are unrolled by pragma to keep them in
// registers. Included by kernels.cpp alone.
//
// Neighbouring pixels are read at every offset, and a load that crosses a cache line counts twice:
// a load for each multiplication leaves 60 to 80 GFLOP/s of 125 (one core, 8 lanes, Zen 5). So
// several rows are in registers together, and share what they load: 85 to 125.
#pragma once

#include <array>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// ---- fprop, and dgrad of stride 1 --------------------------------------------------------------

// Where the vectors of a tile are read: side by side, but the last ends with the last pixel.
template <class T>
struct PlaneTile {
  int64_t first, last;  // pixels of the first and of the last vector
  const PlaneRows& call;
};

// A row of a, met by the rows first to last of the tile: the first by the row of taps at w, each
// other by the one before.
template <int first, int last, class T, int rows, int vectors>
CONVTBW_INLINE void add_plane_row(const PlaneTile<T>& tile, const T* a, const T* w,
                                  Vector<T> (&sums)[rows][vectors]) {
  constexpr int n = kLanes<T>;
  const PlaneRows& call = tile.call;
  const int64_t end = tile.last - tile.first, w_row = call.w_row;
  for (const int64_t *tap = call.taps, *stop = tap + call.tap_count; tap != stop; ++tap, ++w) {
    Vector<T> pixels[vectors];
#pragma GCC unroll kUnroll
    for (int v = 0; v + 1 < vectors; ++v) pixels[v] = load(a + *tap + v * n);
    pixels[vectors - 1] = load(a + *tap + end);
#pragma GCC unroll kUnroll
    for (int r = first; r <= last; ++r) {
      const T weight = w[(first - r) * w_row];
#pragma GCC unroll kUnroll
      for (int v = 0; v < vectors; ++v) sums[r][v] += pixels[v] * weight;
    }
  }
}

// Rows of a that meet more and more rows of the tile.
template <class T, int rows, int vectors, int... last>
CONVTBW_INLINE void add_first_rows(const PlaneTile<T>& tile, [[maybe_unused]] const T* a,
                                   [[maybe_unused]] const T* w, Vector<T> (&sums)[rows][vectors],
                                   std::integer_sequence<int, last...>) {
  (add_plane_row<0, last>(tile, a + last * tile.call.a_row, w + last * tile.call.w_row, sums), ...);
}

// Rows of a that meet less and less rows of the tile; w: the last row of taps.
template <class T, int rows, int vectors, int... first>
CONVTBW_INLINE void add_last_rows(const PlaneTile<T>& tile, [[maybe_unused]] const T* a,
                                  [[maybe_unused]] const T* w, Vector<T> (&sums)[rows][vectors],
                                  std::integer_sequence<int, first...>) {
  (add_plane_row<first + 1, rows - 1>(tile, a + first * tile.call.a_row, w, sums), ...);
}

template <class To, int rows, int vectors, class T = SumOf<To>>
void plane_tile(const PlaneRows& call, int64_t row, int64_t first) {
  constexpr int n = kLanes<T>;
  const PlaneTile<T> tile{first, smaller(first + (vectors - 1) * n, call.count - n), call};
  const int64_t a_row = call.a_row, w_row = call.w_row;
  // The next rows of results, to be written.
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; v += 64 / kBytes)
      __builtin_prefetch(static_cast<To*>(call.c) + (row + rows + r) * call.c_row + first + v * n,
                         1);
  Vector<T> sums[rows][vectors];
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) sums[r][v] = Vector<T>{} + *static_cast<const T*>(call.start);
  for (const PlaneSection *section = call.sections, *stop = section + call.section_count;
       section != stop; ++section) {
    const T* a = static_cast<const T*>(call.a) + section->a + row * a_row + first;
    const T* w = static_cast<const T*>(call.w) + section->w;
    add_first_rows(tile, a, w, sums, std::make_integer_sequence<int, rows - 1>());
    a += (rows - 1) * a_row;
    w += (rows - 1) * w_row;
    for (int64_t k = rows - 1; k < section->rows; ++k, a += a_row, w += w_row)
      add_plane_row<0, rows - 1>(tile, a, w, sums);
    add_last_rows(tile, a, w - w_row, sums, std::make_integer_sequence<int, rows - 1>());
  }
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r) {
    To* const c = static_cast<To*>(call.c) + (row + r) * call.c_row;
#pragma GCC unroll kUnroll
    for (int v = 0; v + 1 < vectors; ++v) store(c + first + v * n, sums[r][v]);
    store(c + tile.last, sums[r][vectors - 1]);
  }
}

using PlaneTileFunction = void (*)(const PlaneRows&, int64_t, int64_t);

// Of so many rows, the most vectors: accumulators, a's vectors and a weight fill 16 registers.
constexpr int kMaxPlaneRows = 4, kMaxPlaneVectors[] = {0, 8, 4, 3, 3};

template <class To, int rows, int... vectors>
constexpr std::array<PlaneTileFunction, sizeof...(vectors)> plane_tiles_of(
    std::integer_sequence<int, vectors...>) {
  return {plane_tile<To, rows, vectors + 1>...};
}

// By vectors - 1.
template <class To, int rows>
constexpr auto kPlaneTiles =
    plane_tiles_of<To, rows>(std::make_integer_sequence<int, kMaxPlaneVectors[rows]>());

template <class To, int rows>
void plane_tiles(const PlaneRows& call, int64_t row) {
  constexpr int n = kLanes<SumOf<To>>;
  constexpr int64_t most = kMaxPlaneVectors[rows];
  const int64_t all = (call.count + n - 1) / n, pieces = (all + most - 1) / most;
  for (int64_t piece = 0, done = 0, vectors; piece < pieces; ++piece, done += vectors) {
    vectors = (all - done) / (pieces - piece);  // as even as can be
    kPlaneTiles<To, rows>[vectors - 1](call, row, done* n);
  }
}

// 3x3 taps: all weights in registers, and the sums of the three rows of results that a row of a
// meets, down a column of vectors. 122 instead of 87 GFLOP/s (one core, 8 lanes, Zen 5).
template <class To, class T = SumOf<To>>
void plane_column(const PlaneRows& call, const PlaneSection& section, int64_t first, bool add) {
  const T* a = static_cast<const T*>(call.a) + section.a + first;
  const T* const w = static_cast<const T*>(call.w) + section.w;
  const auto [tap0, tap1, tap2] = std::array{call.taps[0], call.taps[1], call.taps[2]};
  Vector<T> weights[3][3];
#pragma GCC unroll kUnroll
  for (int k = 0; k < 3; ++k)
#pragma GCC unroll kUnroll
    for (int t = 0; t < 3; ++t) weights[k][t] = w[k * call.w_row + t] - Vector<T>{};
  // The next row of a, and the results that it is the last, the middle and the first row of.
  const auto step = [&](Vector<T>& last, Vector<T>& middle,
                        Vector<T>& begun) __attribute__((always_inline)) {
    const Vector<T> pixels0 = load(a + tap0), pixels1 = load(a + tap1), pixels2 = load(a + tap2);
    last += pixels0 * weights[2][0];
    middle += pixels0 * weights[1][0];
    begun = pixels0 * weights[0][0];
    last += pixels1 * weights[2][1];
    middle += pixels1 * weights[1][1];
    begun += pixels1 * weights[0][1];
    last += pixels2 * weights[2][2];
    middle += pixels2 * weights[1][2];
    begun += pixels2 * weights[0][2];
    a += call.a_row;
  };
  To* c = static_cast<To*>(call.c) + first;
  const T start = *static_cast<const T*>(call.start);
  const auto finish = [&](Vector<T> sum) __attribute__((always_inline)) {
    __builtin_prefetch(c + 64 / sizeof(To), 1);  // the column that lies a line further
    store(c, add ? sum + load(c) : sum + start);
    c += call.c_row;
  };
  Vector<T> sums[3] = {};
  step(sums[1], sums[2], sums[0]);
  step(sums[2], sums[0], sums[1]);
  for (int64_t row = 0;;) {
    step(sums[0], sums[1], sums[2]);
    finish(sums[0]);
    if (++row == call.rows) return;
    step(sums[1], sums[2], sums[0]);
    finish(sums[1]);
    if (++row == call.rows) return;
    step(sums[2], sums[0], sums[1]);
    finish(sums[2]);
    if (++row == call.rows) return;
  }
}

template <class To>
void plane_columns(const PlaneRows& call) {
  constexpr int n = kLanes<SumOf<To>>;
  for (int64_t i = 0; i < call.count; i += n) {
    const int64_t first = smaller(i, call.count - n);
    for (int64_t s = 0; s < call.section_count; ++s)
      plane_column<To>(call, call.sections[s], first, s > 0);
  }
}

template <class To>
void plane_rows(const PlaneRows& call) {
  bool columns = call.tap_count == 3;
  for (int64_t i = 0; i < call.section_count; ++i) columns &= call.sections[i].rows == 3;
  if (columns) return plane_columns<To>(call);
  int64_t most = kMaxPlaneRows;
  for (int64_t i = 0; i < call.section_count; ++i) most = smaller(most, call.sections[i].rows);
  for (int64_t row = 0, rows; row < call.rows; row += rows) {
    rows = smaller(most, call.rows - row);
    switch (rows) {
      case 1:
        plane_tiles<To, 1>(call, row);
        break;
      case 2:
        plane_tiles<To, 2>(call, row);
        break;
      case 3:
        plane_tiles<To, 3>(call, row);
        break;
      default:
        plane_tiles<To, 4>(call, row);
    }
  }
}

// ---- wgrad -------------------------------------------------------------------------------------

template <class V, int rows, int taps>
CONVTBW_INLINE void clear_sums(V (&sums)[rows][taps]) {
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) sums[r][t] = V{};
}

// To those in memory, a row of taps `row` units behind the one before.
template <class T, int rows, int taps>
CONVTBW_INLINE void add_sums(const Vector<T> (&sums)[rows][taps], T* to, int64_t row) {
#pragma GCC unroll kUnroll
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      T* const sum = to + r * row + t * kLanes<T>;
      store(sum, load(sum) + sums[r][t]);
    }
}

// Of a where it may be read, the lanes that count.
struct AllLanes {
  template <class T>
  CONVTBW_INLINE Vector<T> operator()(const T* p) const {
    return load(p);
  }
};

struct FirstLanes {
  int64_t count;

  template <class T>
  CONVTBW_INLINE Vector<T> operator()(const T* p) const {
    return first_lanes(load(p), count);
  }
};

// The side that has fewer vectors is held in registers.
template <class T, int rows, int taps, class Load>
CONVTBW_INLINE void add_plane_taps(const T* const (&a)[taps], const T* const (&b)[rows], int64_t i,
                                   const Load& load_a, Vector<T> (&sums)[rows][taps]) {
  if constexpr (rows <= taps) {
    Vector<T> held[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) held[r] = loaded(load(b[r] + i));
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      const Vector<T> here = loaded(load_a(a[t] + i));
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) sums[r][t] += here * held[r];
    }
  } else {
    Vector<T> held[taps];
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) held[t] = loaded(load_a(a[t] + i));
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      const Vector<T> here = loaded(load(b[r] + i));
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) sums[r][t] += held[t] * here;
    }
  }
}

template <class T, int rows, int taps>
void plane_taps(const PlaneTaps& call) {
  constexpr int n = kLanes<T>;
  const int64_t rest = call.count % n, whole = call.count - rest;
  Vector<T> sums[rows][taps];
  clear_sums(sums);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T *a[taps], *b[rows];
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t)
      a[t] = static_cast<const T*>(call.a) + row * call.a_row + call.taps[t];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) b[r] = static_cast<const T*>(call.b_rows[row - r]);
    for (int side = 0; side < 2; ++side)
      for (int64_t i = 0; i < call.ahead_bytes[side]; i += 64)
        __builtin_prefetch(call.ahead[side] + row * call.ahead_bytes[side] + i, 0, 2);
    for (int64_t i = 0; i < whole; i += n) add_plane_taps(a, b, i, AllLanes{}, sums);
    // What a holds behind the last pixel may not be finite.
    if (rest) add_plane_taps(a, b, whole, FirstLanes{rest}, sums);
  }
  add_sums<T>(sums, static_cast<T*>(call.sums), call.sums_row);
}

template <class T, int rows, int... taps>
constexpr void fill_plane_taps(TapsFunctions<PlaneTaps>& functions,
                               std::integer_sequence<int, taps...>) {
  ((functions.at[rows][taps + 1] = plane_taps<T, rows, taps + 1>), ...);
}

template <class T, int... rows>
constexpr TapsFunctions<PlaneTaps> plane_taps_functions(std::integer_sequence<int, rows...>) {
  TapsFunctions<PlaneTaps> functions{};
  (fill_plane_taps<T, rows + 1>(functions,
                                std::make_integer_sequence<int, kMaxPlaneTaps[rows + 1]>()),
   ...);
  return functions;
}

template <class T>
constexpr TapsFunctions<PlaneTaps> kPlaneTaps =
    plane_taps_functions<T>(std::make_integer_sequence<int, kMaxTapRows>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
