// in_place.h, compiled once per target with that target's flags, as kernels.cpp is. As in tile.h,
// all loops over accumulators are unrolled by pragma to keep them in registers.
#include "backends/simd/in_place.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

#ifndef CONVTBW_PAIRS_ALONE

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Of a tile: accumulators, the rows' operands and one more fill 16 registers, or 31 of AVX-512's 32
// (1x1 with 3 to 21 channels on a side: 0.65 to 0.95 of the time with 3 rows, Zen 5). Operands that
// are converted need one more.
template <class Element>
constexpr int kRows = kBytes < 64 ? 3 : 6 - (sizeof(Element) < 4);
constexpr int kColumns = 4;

template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, double>, double, float>;

template <class T, int rows, int columns>
struct Sums {
  Vector<T> sums[rows][columns];

  CONVTBW_INLINE void clear() {
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
      for (int j = 0; j < columns; ++j) sums[i][j] = Vector<T>{};
  }

  // left(i) is a vector or a scalar. The operands of all rows first: GCC then needs one register
  // for the columns'.
  template <class Left, class Right>
  CONVTBW_INLINE void step(const Left& left, const Right& right) {
    decltype(left(0)) a[rows];
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i) a[i] = left(i);
#pragma GCC unroll kUnroll
    for (int j = 0; j < columns; ++j) {
      const Vector<T> b = right(j);
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i) sums[i][j] += a[i] * b;
    }
  }

  template <class F>
  CONVTBW_INLINE void for_each(const F& f) {
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
      for (int j = 0; j < columns; ++j) f(sums[i][j], i, j);
  }
};

// f(first, count) for pieces of up to `most`, as even as can be.
template <int most, class F>
CONVTBW_INLINE void for_each_piece(int64_t extent, const F& f) {
  for (int64_t pieces = (extent + most - 1) / most, first = 0, count; pieces;
       --pieces, first += count) {
    count = (extent - first) / pieces;
    f(first, count);
  }
}

// ---- sums over pixels --------------------------------------------------------------------------

template <class Element, int rows, int columns>
void pixel_sums_tile(const PixelSums& call, int64_t row, int64_t column) {
  using T = SumOf<Element>;
  constexpr int n = kLanes<T>;
  const Element *a[rows], *b[columns];
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i)
    a[i] = static_cast<const Element*>(call.a) + (row + i) * call.a_row;
#pragma GCC unroll kUnroll
  for (int j = 0; j < columns; ++j)
    b[j] = static_cast<const Element*>(call.b) + (column + j) * call.b_row;
  Sums<T, rows, columns> tile;
  tile.clear();
  int64_t p = 0;
  for (; p + n <= call.pixels; p += n)
    tile.step([&](int i) { return load_beside_sums(a[i] + p); },
              [&](int j) { return load_beside_sums(b[j] + p); });
  if (p < call.pixels) {
    // Pixels that were added before are absent on both sides: zero times infinity is no number.
    decltype(Vector<T>{} == Vector<T>{}) present;
    for (int lane = 0; lane < n; ++lane) present[lane] = lane < p + n - call.pixels ? 0 : -1;
    const auto last = [&](const Element* from) {
      const Vector<T> all = load(from + call.pixels - n);
      return reinterpret_cast<Vector<T>>(reinterpret_cast<decltype(present)>(all) & present);
    };
    tile.step([&](int i) { return last(a[i]); }, [&](int j) { return last(b[j]); });
  }
  T* const result = static_cast<T*>(call.sums) + (row * call.columns + column) * n;
  tile.for_each([&](const Vector<T>& sum, int i, int j) {
    T* const to = result + (i * call.columns + j) * n;
    store(to, load(to) + sum);
  });
}

template <class Element>
constexpr auto kPixelSumsTiles = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array{&pixel_sums_tile<Element, i / kColumns + 1, i % kColumns + 1>...};
}(std::make_integer_sequence<int, kRows<Element> * kColumns>());

template <class Element>
void pixel_sums(const PixelSums& call) {
  for_each_piece<kColumns>(call.columns, [&](int64_t column, int64_t columns) {
    for_each_piece<kRows<Element>>(call.rows, [&](int64_t row, int64_t rows) {
      kPixelSumsTiles<Element>[(rows - 1) * kColumns + columns - 1](call, row, column);
    });
  });
}

// ---- products ----------------------------------------------------------------------------------

// Lanes from `lane` on of sums, from `from` on elsewhere.
template <class B, class C, int rows, int vectors>
void product_tile(const InPlaceProduct& call, int64_t row, int64_t lane, int64_t from) {
  using T = SumOf<B>;
  constexpr int n = kLanes<T>;
  const int64_t a_row = call.a_row, a_step = call.a_step, b_step = call.b_step;
  Sums<T, rows, vectors> tile;
  tile.clear();
  if (call.row_start)
    tile.for_each([&](Vector<T>& sum, int i, int) {
      sum = Vector<T>{} + static_cast<const T*>(call.row_start)[row + i];
    });
  if (call.lane_start)
    tile.for_each([&](Vector<T>& sum, int, int j) {
      sum = load(static_cast<const T*>(call.lane_start) + from + j * n);
    });
  const T* a = static_cast<const T*>(call.a) + row * a_row;
  const B* b = static_cast<const B*>(call.b) + from;
  for (int64_t k = call.steps; k > 0; --k) {
    tile.step([&](int i) { return a[i * a_row]; },
              [&](int j) { return load_beside_sums(b + j * n); });
    a += a_step;
    b += b_step;
  }
  if (call.sums) {
    const T* const sums = static_cast<const T*>(call.sums) + row * call.sums_row + lane;
    tile.for_each(
        [&](Vector<T>& sum, int i, int j) { sum += load(sums + i * call.sums_row + j * n); });
  }
  C* const c = static_cast<C*>(call.c) + row * call.c_row + (call.to_sums ? lane : from);
  tile.for_each(
      [&](const Vector<T>& sum, int i, int j) { store(c + i * call.c_row + j * n, sum); });
}

// Of 1, 2 and 4 vectors.
constexpr int kWidths = 3;
template <class B, class C>
constexpr auto kProductTiles = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array{&product_tile<B, C, i / kWidths + 1, 1 << i % kWidths>...};
}(std::make_integer_sequence<int, kRows<B> * kWidths>());

template <class B, class C>
void product(const InPlaceProduct& call) {
  constexpr int64_t n = kLanes<SumOf<B>>;
  for_each_piece<kRows<B>>(call.rows, [&](int64_t row, int64_t rows) {
    for (int64_t lane = 0; lane < call.lanes;) {
      const int64_t whole = (call.lanes - lane) / n;
      const int log = whole >= 4 ? 2 : whole >= 2 ? 1 : 0;  // of the vectors
      kProductTiles<B, C>[(rows - 1) * kWidths + log](call, row, lane,
                                                      std::min(lane, call.lanes - n));
      lane += n << log;
    }
  });
}

// ---- dot products ------------------------------------------------------------------------------

// The lanes of two vectors that are `first`, first + 2 and so on in their part of 128 bits.
template <int first, class V>
CONVTBW_INLINE V every_second_of_parts(V a, V b) {
  constexpr int n = 16 / sizeof(a[0]);
  return shuffle<[](int lanes, int j) {
    const int of = j % n;
    return j - of + (of < n / 2 ? 2 * of : lanes + 2 * of - n) + first;
  }>(a, b);
}

// Every second part.
template <int first, class V>
CONVTBW_INLINE V every_second_part(V a, V b) {
  constexpr int n = 16 / sizeof(a[0]);
  return shuffle<[](int lanes, int j) {
    const int part = 2 * (j / n), parts = lanes / n;
    return (part < parts ? part * n : lanes + (part - parts) * n) + first * n + j % n;
  }>(a, b);
}

// Of each of as many vectors as one has lanes, the sum of its lanes.
template <int left, class V>
CONVTBW_INLINE V sums_of_lanes(V* v) {
  constexpr int n = sizeof(V) / sizeof(v[0][0]), parts = sizeof(V) / 16;
  if constexpr (left == 1) {
    return v[0];
  } else {
#pragma GCC unroll kUnroll
    for (int i = 0; i < left / 2; ++i) {
      const V a = v[2 * i], b = v[2 * i + 1];
      if constexpr (left > parts)
        v[i] = every_second_of_parts<0>(a, b) + every_second_of_parts<1>(a, b);
      else
        v[i] = every_second_part<0>(a, b) + every_second_part<1>(a, b);
    }
    static_assert(left <= n);
    return sums_of_lanes<left / 2>(v);
  }
}

// Some columns. As many rows at a time as registers hold, then their sums of kDotPixels rows.
template <class Element, class C, int columns>
void dot_product_columns(const DotProducts& call, int64_t column) {
  using T = SumOf<Element>;
  constexpr int n = kLanes<T>, rows = columns <= 3 ? 4 : 2, sums = kDotPixels * columns;
  const T* const b = static_cast<const T*>(call.b) + column * call.b_row;
  const int64_t b_row = call.b_row, whole = call.steps / n * n, rest = call.steps - whole;
  T start[sums];
  for (int i = 0; i < sums; ++i) start[i] = static_cast<const T*>(call.start)[column + i % columns];
  for (int64_t next = 0; next < call.rows; next += kDotPixels) {
    const int64_t row = smaller(next, call.rows - kDotPixels);  // overlapping the rows before
    Vector<T> all[sums];
    for (int first = 0; first < kDotPixels; first += rows) {
      const Element* a[rows];
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i)
        a[i] = static_cast<const Element*>(call.a) + (row + first + i) * call.a_row;
      Sums<T, rows, columns> tile;
      tile.clear();
      for (int64_t k = 0; k < whole; k += n)
        tile.step([&](int i) { return load_beside_sums(a[i] + k); },
                  [&](int j) { return load(b + j * b_row + k); });
      if (rest)
        tile.step([&](int i) { return load_some(a[i] + whole, rest); },
                  [&](int j) { return load(b + j * b_row + whole); });
      tile.for_each(
          [&](const Vector<T>& sum, int i, int j) { all[(first + i) * columns + j] = sum; });
    }
    C* const c = static_cast<C*>(call.c) + row * call.c_row + column * call.c_column;
    const bool adjacent = call.c_column == 1 && call.c_row == columns;
    C few[sums];
    C* const results = adjacent ? c : few;
    for (int i = 0; i < sums; i += n)
      store(results + i, sums_of_lanes<n>(all + i) + load(start + i));
    if (adjacent) continue;
    for (int i = 0; i < kDotPixels; ++i)
      for (int j = 0; j < columns; ++j)
        c[i * call.c_row + j * call.c_column] = few[i * columns + j];
  }
}

template <class Element, class C>
void dot_products(const DotProducts& call) {
  constexpr void (*columns_of[])(const DotProducts&, int64_t) = {
      dot_product_columns<Element, C, 1>, dot_product_columns<Element, C, 2>,
      dot_product_columns<Element, C, 3>, dot_product_columns<Element, C, 4>};
  for_each_piece<4>(call.columns, [&](int64_t column, int64_t columns) {
    columns_of[columns - 1](call, column);
  });
}

}  // namespace

extern constinit const InPlaceKernels kInPlace{
    {pixel_sums<float>, pixel_sums<bfloat16>, pixel_sums<float16>, pixel_sums<double>},
    {{product<float, float>, product<float, bfloat16>, product<float, float16>},
     {product<bfloat16, float>, product<bfloat16, bfloat16>},
     {product<float16, float>, nullptr, product<float16, float16>},
     {nullptr, nullptr, nullptr, product<double, double>}},
    {{dot_products<float, float>},
     {dot_products<bfloat16, float>, dot_products<bfloat16, bfloat16>},
     {dot_products<float16, float>, nullptr, dot_products<float16, float16>},
     {nullptr, nullptr, nullptr, dot_products<double, double>}},
};

}  // namespace convtbw::simd::CONVTBW_TARGET

#endif
