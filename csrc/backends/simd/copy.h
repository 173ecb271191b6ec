// Copies between tensors of any strides and dtype and buffers (kernels.h, Copy). Included by
// kernels.cpp alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// What a copy reads: `all` converts as many neighbours as a vector has lanes, `some` only `count` of
// them and reads nothing beyond.
template <class Element>
struct Elements {
  using Unit = std::conditional_t<std::is_same_v<Element, double>, double, float>;
  static constexpr int kElements = 1;  // of the tensor, a unit

  const Element* p;

  CONVTBW_INLINE Elements at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE Vector<Unit> all() const { return load(p); }
  CONVTBW_INLINE Vector<Unit> some(int64_t count) const {
    Element few[kLanes<Unit>] = {};
    for (int64_t i = 0; i < count; ++i) few[i] = p[i];
    return load(few);
  }
};

// Pairs whose halves lie `second` elements apart.
template <Halves halves>
struct SplitPairs {
  using Unit = uint32_t;
  static constexpr int kElements = 1;

  const bfloat16* p;
  int64_t second;

  CONVTBW_INLINE SplitPairs at(int64_t offset) const { return {p + offset, second}; }
  CONVTBW_INLINE Words all() const {
    if constexpr (halves == Halves::first) return widen(&p->bits);
    if constexpr (halves == Halves::second) return widen(&p[second].bits) << 16;
    return widen(&p->bits) | widen(&p[second].bits) << 16;
  }
  CONVTBW_INLINE Words some(int64_t count) const {
    uint32_t few[kLanes<uint32_t>] = {};
    for (int64_t i = 0; i < count; ++i) {
      if (halves != Halves::second) few[i] = p[i].bits;
      if (halves != Halves::first) few[i] |= static_cast<uint32_t>(p[second + i].bits) << 16;
    }
    return load(few);
  }
};

// Pairs of neighbours.
struct AdjacentPairs {
  using Unit = uint32_t;
  static constexpr int kElements = 2;

  const bfloat16* p;

  CONVTBW_INLINE AdjacentPairs at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE Words all() const { return *reinterpret_cast<const Words*>(p); }
  CONVTBW_INLINE Words some(int64_t count) const {
    uint32_t few[kLanes<uint32_t>] = {};
    for (int64_t i = 0; i < count; ++i)
      few[i] = p[2 * i].bits | static_cast<uint32_t>(p[2 * i + 1].bits) << 16;
    return load(few);
  }
};

template <class V, int... lane>
constexpr V iota(std::integer_sequence<int, lane...>) {
  return V{lane...};
}

// Zeros in the lanes behind the first `count`.
template <class V>
CONVTBW_INLINE V first_lanes(V v, int64_t count) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  using Mask = decltype(v == v);
  const Mask lane = iota<Mask>(std::make_integer_sequence<int, n>());
  return reinterpret_cast<V>(reinterpret_cast<Mask>(v) & (lane < static_cast<int>(count)));
}

template <class To, class V>
CONVTBW_INLINE void store_some(To* p, V v, int64_t count) {
  To all[sizeof(V) / sizeof(v[0])];
  store(all, v);
  for (int64_t i = 0; i < count; ++i) p[i] = all[i];
}

template <class To>
CONVTBW_INLINE void clear(To* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = To{};
}

// Columns are contiguous on both sides.
template <class From, class To>
void copy_rows(const Copy& c, From from) {
  constexpr int n = kLanes<typename From::Unit>;
  const int64_t step = c.to_vector ? c.to_vector : n;
  // What overlaps is copied twice: cheaper than single elements.
  const bool overlap = !c.to_vector && c.columns > n;
  To* to = static_cast<To*>(c.to);
  for (int64_t row = 0; row < c.rows; ++row, from = from.at(c.from_row), to += c.to_row) {
    int64_t column = 0;
    To* vector = to;
    for (; column + n <= c.columns; column += n, vector += step)
      store(vector, from.at(column * From::kElements).all());
    const int64_t rest = c.columns - column;
    if (rest && overlap) {
      store(to + c.columns - n, from.at((c.columns - n) * From::kElements).all());
    } else if (rest) {
      // Up to the next row's end, all of the source's memory may be read.
      const bool room = row + 1 < c.rows && c.from_row >= n * From::kElements;
      const From at = from.at(column * From::kElements);
      const auto last = room ? first_lanes(at.all(), rest) : at.some(rest);
      if (rest + c.zeros >= n)
        store(vector, last);
      else
        store_some(vector, last, rest);
    }
    if (c.zeros) clear(vector + rest, c.zeros);
  }
}

// Rows are contiguous in the source, columns in the destination: square blocks are transposed in
// registers.
template <class From, class To>
void copy_transposed(const Copy& c, From from) {
  using Unit = typename From::Unit;
  constexpr int n = kLanes<Unit>;
  const int64_t step = c.to_vector ? c.to_vector : n;
  // Hardware does not foresee so many streams at once: a depthwise 3x3 weights gradient of 112x112
  // takes 0.81 of the time, smaller images are within 5 % (Zen 4).
  constexpr int64_t ahead = 128;
  for (int64_t next_row = 0; next_row < c.rows; next_row += n) {
    // The last blocks overlap their neighbours: cheaper than smaller ones.
    const int64_t rows = c.rows < n ? c.rows : n;
    const int64_t row = next_row < c.rows - rows ? next_row : c.rows - rows;
    To* const first = static_cast<To*>(c.to) + row * c.to_row;
    for (int64_t next = 0; next < c.columns; next += n) {
      const bool overlap = !c.to_vector && c.columns > n && c.columns - next < n;
      const int64_t column = overlap ? c.columns - n : next;
      const int64_t columns = c.columns - column < n ? c.columns - column : n;
      To* const to = first + (overlap ? column : next / n * step);
      const From block = from.at(row * From::kElements + column * c.from_column);
      Vector<Unit> lines[n];
      if (rows == n && columns == n) {
#pragma GCC unroll 16
        for (int j = 0; j < n; ++j) {
          lines[j] = block.at(j * c.from_column).all();
          __builtin_prefetch(block.at(j * c.from_column + ahead).p);
        }
        transpose(lines);
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) store(to + i * c.to_row, lines[i]);
        continue;
      }
      for (int j = 0; j < n; ++j)
        lines[j] = j >= columns ? Vector<Unit>{}
                   : rows == n  ? block.at(j * c.from_column).all()
                                : block.at(j * c.from_column).some(rows);
      transpose(lines);
      const bool room = columns == n || c.zeros >= n - columns;
      for (int i = 0; i < rows; ++i) {
        if (room)
          store(to + i * c.to_row, lines[i]);
        else
          store_some(to + i * c.to_row, lines[i], columns);
      }
    }
    if (c.zeros)
      for (int64_t i = 0; i < rows; ++i)
        clear(first + i * c.to_row + c.columns / n * step + c.columns % n, c.zeros);
  }
}

template <class From, class To>
void copy_elements(const Copy& c, From from) {
  constexpr int n = kLanes<typename From::Unit>;
  const auto place = [&](int64_t column) {
    return c.to_vector ? column / n * c.to_vector + column % n : column * c.to_column;
  };
  To* to = static_cast<To*>(c.to);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns; ++column)
      store_some(to + row * c.to_row + place(column),
                 from.at(row * c.from_row + column * c.from_column).some(1), 1);
    for (int64_t column = c.columns; column < c.columns + c.zeros; ++column)
      to[row * c.to_row + place(column)] = To{};
  }
}

template <class From, class To>
void copy(Copy c, From from) {
  constexpr int64_t unit = From::kElements;
  if (!c.zeros && !c.to_vector && c.to_column != 1 && c.to_row == 1) {
    const Copy turned{c.from,  c.from_column, c.from_row, c.to, c.to_column, c.to_row,
                      c.columns, c.rows};
    c = turned;
  }
  if (c.to_column == 1 && c.from_column == unit) {
    if (!c.zeros && !c.to_vector && c.from_row == c.columns * unit && c.to_row == c.columns) {
      c.columns *= c.rows;  // one long row
      c.rows = 1;
    }
    copy_rows<From, To>(c, from);
  } else if (c.to_column == 1 && c.from_row == unit) {
    copy_transposed<From, To>(c, from);
  } else {
    copy_elements<From, To>(c, from);
  }
}

template <class Element, class To>
void copy_elements_of(const Copy& c) {
  copy<Elements<Element>, To>(c, {static_cast<const Element*>(c.from)});
}

#ifdef CONVTBW_PAIRS
void copy_pairs(const Copy& c) {
  const bfloat16* const from = static_cast<const bfloat16*>(c.from);
  const int64_t second = c.second;
  if (c.halves == Halves::first)
    copy<SplitPairs<Halves::first>, uint32_t>(c, {from, second});
  else if (c.halves == Halves::second)
    copy<SplitPairs<Halves::second>, uint32_t>(c, {from, second});
  else if (second == 1 && (c.from_column == 2 || c.from_row == 2))
    copy<AdjacentPairs, uint32_t>(c, {from});
  else
    copy<SplitPairs<Halves::both>, uint32_t>(c, {from, second});
}
#endif

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
