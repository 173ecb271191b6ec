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
  const auto pixels_at = [](const T* p) __attribute__((always_inline)) {
    const Vector<T> pixels = load(p);
    if constexpr (first < last) return loaded(pixels);  // of one row are read once anyway
    return pixels;
  };
  for (const int64_t *tap = call.taps, *stop = tap + call.tap_count; tap != stop; ++tap, ++w) {
    Vector<T> pixels[vectors];
#pragma GCC unroll kUnroll
    for (int v = 0; v + 1 < vectors; ++v) pixels[v] = pixels_at(a + *tap + v * n);
    pixels[vectors - 1] = pixels_at(a + *tap + end);
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

// Of both at once: the rows 0 to `last` of the tile meet a row of a, those behind meet the one that
// is all rows of taps below.
template <int last, class T, int rows, int vectors>
CONVTBW_INLINE void add_plane_row_pair(const PlaneTile<T>& tile, const T* above, const T* w_above,
                                       const T* below, const T* w_below,
                                       Vector<T> (&sums)[rows][vectors]) {
  constexpr int n = kLanes<T>;
  const PlaneRows& call = tile.call;
  const int64_t end = tile.last - tile.first, w_row = call.w_row;
  for (const int64_t *tap = call.taps, *stop = tap + call.tap_count; tap != stop; ++tap) {
    Vector<T> pixels[2][vectors];
#pragma GCC unroll kUnroll
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = *tap + (v + 1 < vectors ? v * n : end);
      pixels[0][v] = loaded(load(above + at));
      pixels[1][v] = loaded(load(below + at));
    }
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      const T weight = r <= last ? w_above[-r * w_row] : w_below[(last + 1 - r) * w_row];
#pragma GCC unroll kUnroll
      for (int v = 0; v < vectors; ++v) sums[r][v] += pixels[r > last][v] * weight;
    }
    ++w_above;
    ++w_below;
  }
}

template <class T, int rows, int vectors, int... last>
CONVTBW_INLINE void add_row_pairs(const PlaneTile<T>& tile, [[maybe_unused]] const T* above,
                                  [[maybe_unused]] const T* w_above,
                                  [[maybe_unused]] const T* below,
                                  [[maybe_unused]] const T* w_below,
                                  Vector<T> (&sums)[rows][vectors],
                                  std::integer_sequence<int, last...>) {
  (add_plane_row_pair<last>(tile, above + last * tile.call.a_row, w_above + last * tile.call.w_row,
                            below + last * tile.call.a_row, w_below, sums),
   ...);
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
    constexpr std::make_integer_sequence<int, rows - 1> partial;
    const int64_t below = section->rows * a_row, last_w = (section->rows - 1) * w_row;
    // Chains of multiply-adds stay as many as the tile has sums. Time of first and last rows one
    // after the other over that of both at once, 16 lanes and 8 (Zen 5): 7x7 of 28x28 1.13, 1.08,
    // 56x56 1.02, 1.02.
    constexpr bool both = rows * vectors + 2 * vectors < kRegisters;
    if constexpr (both)
      add_row_pairs(tile, a, w, a + below, w + last_w, sums, partial);
    else
      add_first_rows(tile, a, w, sums, partial);
    for (int64_t k = rows - 1; k < section->rows; ++k)
      add_plane_row<0, rows - 1>(tile, a + k * a_row, w + k * w_row, sums);
    if constexpr (!both) add_last_rows(tile, a + below, w + last_w, sums, partial);
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

// The most vectors of so many rows: accumulators, a's vectors and a weight fill the registers.
constexpr auto kMaxPlaneVectors = [] {
  if constexpr (kRegisters > 16)
    return std::array{0, 8, 8, 6, 5, 4, 4};
  else
    return std::array{0, 8, 4, 3, 3};
}();
constexpr int kMaxPlaneRows = static_cast<int>(kMaxPlaneVectors.size()) - 1;

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

// Rows of results by rows - 1.
template <class To, int... rows>
constexpr auto plane_tiles_by_rows(std::integer_sequence<int, rows...>) {
  return std::array{plane_tiles<To, rows + 1>...};
}

template <class To>
constexpr auto kPlaneTilesByRows =
    plane_tiles_by_rows<To>(std::make_integer_sequence<int, kMaxPlaneRows>());

// As many rows of taps as taps of a row: all weights in registers, and the sums of the rows of
// results that a row of a meets, down a column of vectors. 3x3 122 instead of 87 GFLOP/s (one core,
// 8 lanes, Zen 5), 4x4 with 16 lanes 184 to 212 instead of 112 to 178; 2x2 0.6 to 0.7 of the time
// (Zen 4).
template <class T, int taps>
struct PlaneColumn {
  Vector<T> weights[taps][taps], sums[taps];  // of row r of results: r % taps
  int64_t tap[taps];

  // Row `row` of a, modulo taps: the last row that meets one row of results, the first of another.
  template <int row>
  CONVTBW_INLINE void step(const T* a) {
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      const Vector<T> pixels = loaded(load(a + tap[t]));
#pragma GCC unroll kUnroll
      for (int k = taps - 1; k >= 0; --k) {
        Vector<T>& sum = sums[(row + taps - k) % taps];
        sum = k + t == 0 ? pixels * weights[0][0] : sum + pixels * weights[k][t];
      }
    }
  }
};

template <class To, int taps, class T = SumOf<To>>
void plane_column(const PlaneRows& call, const PlaneSection& section, int64_t first, bool add) {
  const T* a = static_cast<const T*>(call.a) + section.a + first;
  const T* const w = static_cast<const T*>(call.w) + section.w;
  PlaneColumn<T, taps> column;
#pragma GCC unroll kUnroll
  for (int k = 0; k < taps; ++k) {
    column.tap[k] = call.taps[k];
    column.sums[k] = Vector<T>{};
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) column.weights[k][t] = w[k * call.w_row + t] - Vector<T>{};
  }
  // Read before: stores might change them, as far as GCC knows.
  const int64_t a_row = call.a_row, c_row = call.c_row;
  int64_t left = call.rows;
  To* c = static_cast<To*>(call.c) + first;
  const T start = *static_cast<const T*>(call.start);
  const auto step = [&]<int row>(std::integral_constant<int, row>) __attribute__((always_inline)) {
    column.template step<row % taps>(a);
    a += a_row;
  };
  // Whether there are more results.
  const auto finish = [&](Vector<T> sum) __attribute__((always_inline)) {
    __builtin_prefetch(c + 64 / sizeof(To), 1);  // the column that lies a line further
    store(c, add ? sum + load(c) : sum + start);
    c += c_row;
    return --left > 0;
  };
  [&]<int... row>(std::integer_sequence<int, row...>) __attribute__((always_inline)) {
    (step(std::integral_constant<int, row>()), ...);
  }(std::make_integer_sequence<int, taps - 1>());
  const auto finish_round = [&]<int... row>(
                                std::integer_sequence<int, row...>) __attribute__((always_inline)) {
    return ((step(std::integral_constant<int, row + taps - 1>()), finish(column.sums[row])) && ...);
  };
  while (finish_round(std::make_integer_sequence<int, taps>())) {
  }
}

template <class To, int taps>
void plane_columns(const PlaneRows& call) {
  constexpr int n = kLanes<SumOf<To>>;
  for (int64_t i = 0; i < call.count; i += n) {
    const int64_t first = smaller(i, call.count - n);
    for (int64_t s = 0; s < call.section_count; ++s)
      plane_column<To, taps>(call, call.sections[s], first, s > 0);
  }
}

template <class To>
void plane_rows(const PlaneRows& call) {
  bool square = true;
  int64_t most = kMaxPlaneRows;
  for (int64_t i = 0; i < call.section_count; ++i) {
    square &= call.sections[i].rows == call.tap_count;
    most = smaller(most, call.sections[i].rows);
  }
  if (square && call.tap_count == 2) return plane_columns<To, 2>(call);
  if (square && call.tap_count == 3) return plane_columns<To, 3>(call);
  if constexpr (kRegisters > 16) {
    // Of more vectors tiles are as fast: 5x5 of 28x28 0.9, 48x48 1.05 of their time (16 lanes).
    constexpr int64_t kFewVectors = 2;
    if (square && call.tap_count == 4) return plane_columns<To, 4>(call);
    if (square && call.tap_count == 5 && call.count <= kFewVectors * kLanes<SumOf<To>>)
      return plane_columns<To, 5>(call);
  }
  int64_t pieces = (call.rows + most - 1) / most;
  for (int64_t row = 0, rows; row < call.rows; row += rows, --pieces) {
    rows = (call.rows - row) / pieces;  // as even as can be
    kPlaneTilesByRows<To>[rows - 1](call, row);
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

// Of a vector of a or b, the lanes that count.
struct AllLanes {
  template <class V>
  CONVTBW_INLINE V operator()(V v) const {
    return v;
  }
};

struct FirstLanes {
  int64_t count;

  template <class V>
  CONVTBW_INLINE V operator()(V v) const {
    return first_lanes(v, count);
  }
};

// Those behind the first `count`.
struct LastLanes {
  int64_t count;

  template <class V>
  CONVTBW_INLINE V operator()(V v) const {
    using Bits = decltype(v == v);
    return reinterpret_cast<V>(reinterpret_cast<Bits>(v) ^
                               reinterpret_cast<Bits>(first_lanes(v, count)));
  }
};

// load() of a vector of b, as the registers that are left allow.
template <int rows, int taps, class B>
CONVTBW_INLINE auto load_b(const B* p) {
  if constexpr (rows * taps + (rows < taps ? rows : taps) + 1 < kRegisters)
    return load(p);
  else
    return load_beside_sums(p);
}

// The side that has fewer vectors is held in registers.
template <class T, class B, int rows, int taps, class Lanes>
CONVTBW_INLINE void add_plane_taps(const T* const (&a)[taps], const B* const (&b)[rows], int64_t i,
                                   const Lanes& lanes, Vector<T> (&sums)[rows][taps]) {
  if constexpr (rows <= taps) {
    Vector<T> held[rows];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) held[r] = loaded(lanes(load_b<rows, taps>(b[r] + i)));
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) {
      const Vector<T> here = loaded(lanes(load(a[t] + i)));
#pragma GCC unroll kUnroll
      for (int r = 0; r < rows; ++r) sums[r][t] += here * held[r];
    }
  } else {
    Vector<T> held[taps];
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t) held[t] = loaded(lanes(load(a[t] + i)));
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) {
      const Vector<T> here = loaded(lanes(load_b<rows, taps>(b[r] + i)));
#pragma GCC unroll kUnroll
      for (int t = 0; t < taps; ++t) sums[r][t] += held[t] * here;
    }
  }
}

template <class B, int rows, int taps, class T = SumOf<B>>
void plane_taps(const PlaneTaps& call) {
  constexpr int n = kLanes<T>;
  const int64_t rest = call.count % n, whole = call.count - rest;
  Vector<T> sums[rows][taps];
  clear_sums(sums);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* a[taps];
    const B* b[rows];
#pragma GCC unroll kUnroll
    for (int t = 0; t < taps; ++t)
      a[t] = static_cast<const T*>(call.a) + row * call.a_row + call.taps[t];
#pragma GCC unroll kUnroll
    for (int r = 0; r < rows; ++r) b[r] = static_cast<const B*>(call.b_rows[row - r]);
    for (int side = 0; side < 2; ++side)
      for (int64_t i = 0; i < call.ahead_bytes[side]; i += 64)
        __builtin_prefetch(call.ahead[side] + row * call.ahead_bytes[side] + i, 0, 2);
    for (int64_t i = 0; i < whole; i += n) add_plane_taps(a, b, i, AllLanes{}, sums);
    if (rest == 0) continue;
    // What lies behind the last pixel may not be finite, nor what was met before.
    if (whole)
      add_plane_taps(a, b, call.count - n, LastLanes{n - rest}, sums);
    else
      add_plane_taps(a, b, 0, FirstLanes{rest}, sums);
  }
  add_sums<T>(sums, static_cast<T*>(call.sums), call.sums_row);
}

template <class B, int rows, int... taps>
constexpr void fill_plane_taps(TapsFunctions<PlaneTaps>& functions,
                               std::integer_sequence<int, taps...>) {
  ((functions.at[rows][taps + 1] = plane_taps<B, rows, taps + 1>), ...);
}

template <class B, int... rows>
constexpr TapsFunctions<PlaneTaps> plane_taps_functions(std::integer_sequence<int, rows...>) {
  TapsFunctions<PlaneTaps> functions{};
  (fill_plane_taps<B, rows + 1>(functions,
                                std::make_integer_sequence<int, kMaxPlaneTaps[rows + 1]>()),
   ...);
  return functions;
}

template <class B>
constexpr TapsFunctions<PlaneTaps> kPlaneTaps =
    plane_taps_functions<B>(std::make_integer_sequence<int, kMaxTapRows>());

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
