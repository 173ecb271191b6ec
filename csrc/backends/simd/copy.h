// Copies between tensors of any strides and dtype and buffers (kernels.h, Copy). Included by
// kernels.cpp alone.
#pragma once

#include "backends/simd/copy_sources.h"
#include "backends/simd/kernels.h"
#include "backends/simd/odd_pairs.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// The two whose last column may have no second elements (Copy, odd): what copies rows reads the
// former, what transposes the latter (copy_pairs).
template <class From>
constexpr bool kAdjacent = std::is_same_v<From, AdjacentPairs>;
template <class From>
constexpr bool kSplit = std::is_same_v<From, SplitPairs<Halves::both>>;

template <class To>
CONVTBW_INLINE void clear(To* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = To{};
}

template <class From, class To>
CONVTBW_INLINE void copy_row(const Copy& c, From from, To* to) {
  constexpr int n = kLanes<typename From::Unit>;
  const bool odd = kAdjacent<From> && c.odd;
  int64_t column = 0;
  for (; column + n <= c.columns - odd; column += n)
    store(to + column, from.at(column * From::kElements).all());
  const int64_t rest = c.columns - column, end = c.columns + c.zeros;
  const auto last = [&] {
    const From from_last = from.at(column * From::kElements);
    if constexpr (kAdjacent<From>)
      return from_last.elements(2 * rest - odd);
    else
      return from_last.some(rest);
  };
  // Zeros of their own, for which GCC calls memset(), made a depthwise layer of 6 channels take 1.1
  // times as long.
  int64_t written = c.columns;
  if (rest && column + n <= end) {
    store(to + column, last());
    written = column + n;
  } else if (rest && column && !odd) {  // overlapping the vector before
    store(to + c.columns - n, from.at((c.columns - n) * From::kElements).all());
  } else if (rest) {
    store_some(to + column, last(), rest);
  }
  if (written < end) clear(to + written, end - written);
}

// Rows are often pieces of a few cache lines, far apart, which the hardware does not foresee: 3 to
// 8 % of weights gradients with channels last (Zen 4; 4 to 16 rows ahead are alike). Behind the
// last row nothing is read: a prefetch does not fault.
template <class From>
CONVTBW_INLINE void prefetch(const Copy& c, From from) {
  constexpr int64_t kRowsAhead = 8;
  for (int64_t column = 0; column < c.columns; column += 64 / sizeof(*from.p) / From::kElements)
    __builtin_prefetch(from.at(kRowsAhead * c.from_row + column * From::kElements).p);
}

// Columns are contiguous on both sides.
template <class From, class To>
__attribute__((noinline)) void copy_rows(const Copy& call, From from) {
  constexpr int n = kLanes<typename From::Unit>;
  const Copy c = call;  // which stores through pointers to vectors cannot change
  To* to = static_cast<To*>(c.to);
  int64_t row = 0;
  if constexpr (kAdjacent<From>) {
    row = copy_odd_pairs(call, from.p);
    from = from.at(row * c.from_row);
    to += row * c.to_row;
  }
  if (c.columns == n && !c.zeros && !c.odd) {  // panels of one vector
    for (; row < c.rows; ++row, from = from.at(c.from_row), to += c.to_row)
      for (int64_t panel = 0; panel < c.panels; ++panel) {
        prefetch(c, from.at(panel * c.from_panel));
        store(to + panel * c.to_panel, from.at(panel * c.from_panel).all());
      }
    return;
  }
  for (; row < c.rows; ++row, from = from.at(c.from_row), to += c.to_row)
    for (int64_t panel = 0; panel < c.panels; ++panel) {
      prefetch(c, from.at(panel * c.from_panel));
      copy_row(c, from.at(panel * c.from_panel), to + panel * c.to_panel);
    }
}

// Column j of a block: whole, or only `rows` elements.
template <class From>
CONVTBW_INLINE auto column_of(const Copy& c, From block, int64_t j, bool last, bool whole,
                              int64_t rows) {
  const From column = block.at(j * c.from_column);
  const auto read = [&](const auto& from) __attribute__((always_inline)) {
    return whole ? from.all() : from.some(rows);
  };
  if constexpr (kSplit<From>)
    if (c.odd && last) return read(column.first_elements());
  return read(column);
}

// Where rows go, from one on.
template <bool dealt, class To>
class RowPlaces {
 public:
  CONVTBW_INLINE RowPlaces(const Copy& c, int64_t row)
      : c_(c), place_(static_cast<To*>(c.to) + row * c.to_row) {
    if constexpr (dealt) {
      const auto i = static_cast<uint32_t>(row), deal = static_cast<uint32_t>(c.deal);
      turn_ = i % deal;
      place_ = static_cast<To*>(c.to) + i / deal * c.to_row + turn_ * c.to_deal;
    }
  }
  CONVTBW_INLINE To* next() {
    To* const here = place_;
    if constexpr (dealt) {
      const bool last = ++turn_ == c_.deal;
      turn_ = last ? 0 : turn_;
      place_ += last ? c_.to_row - (c_.deal - 1) * c_.to_deal : c_.to_deal;
    } else {
      place_ += c_.to_row;
    }
    return here;
  }

 private:
  const Copy& c_;
  To* place_;
  int64_t turn_ = 0;
};

// A square block, or what is left of one, transposed in registers: rows are contiguous in the
// source, columns in the destination.
template <bool dealt, class From, class To>
CONVTBW_INLINE void copy_block(const Copy& c, From from, int64_t row, int64_t column) {
  using Unit = typename From::Unit;
  constexpr int n = kLanes<Unit>;
  const int64_t rows = c.rows - row, columns = c.columns - column;
  const From block = from.at(row * From::kElements + column * c.from_column);
  RowPlaces<dealt, To> places(c, row);
  const bool odd = kSplit<From> && c.odd;
  // Of less than a vector: up to the last column's end all of the source's memory may be read.
  const int64_t end = (columns - 1) * c.from_column + rows * From::kElements;
  const int64_t reach = n * From::kElements + (odd ? c.second : 0);
  Vector<Unit> lines[n];
  if (columns >= n + odd && (rows >= n || (n - 1) * c.from_column + reach <= end)) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j) lines[j] = block.at(j * c.from_column).all();
    transpose(lines);
#pragma GCC unroll kUnroll
    for (int i = 0; i < n; ++i)
      if (i < rows) store(places.next() + column, lines[i]);
    return;
  }
  if (rows >= n) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j)
      lines[j] = j < columns ? column_of(c, block, j, j == columns - 1, true, n) : Vector<Unit>{};
  } else {
    for (int j = 0; j < n; ++j)
      lines[j] = j < columns ? column_of(c, block, j, j == columns - 1,
                                         j * c.from_column + reach <= end, rows)
                             : Vector<Unit>{};
  }
  transpose(lines);
  for (int i = 0; i < n && i < rows; ++i) {
    // Lanes behind the last column are zero, or are overwritten with the next rows, or do not fit.
    const bool joined = !dealt && c.to_row == c.columns;
    const int64_t behind = joined ? (rows - 1 - i) * c.to_row : c.zeros;
    To* const to = places.next() + column;
    if (columns + behind >= n)
      store(to, lines[i]);
    else
      store_some(to, lines[i], columns);
  }
}

// A vector of lanes of several, which count in turn: its lane l is lane at(lanes, l) of all; `at`
// is a captureless function.
template <auto at, int count, class V>
CONVTBW_INLINE V lanes_of(const V (&lines)[count]) {
  const auto with = [&]<int line>(V before) __attribute__((always_inline)) {
    constexpr auto place = [](int lanes, int lane) {
      const int from = at(lanes, lane);
      return from / lanes == line ? lanes + from % lanes : line == 1 ? from % lanes : lane;
    };
    return shuffle<place>(before, lines[line]);
  };
  V result = lines[0];
  [&]<int... before>(std::integer_sequence<int, before...>) __attribute__((always_inline)) {
    ((result = with.template operator()<before + 1>(result)), ...);
  }(std::make_integer_sequence<int, count - 1>());
  return result;
}

// Lanes [part * lanes, (part + 1) * lanes) of the lines' elements in turn.
template <int part, int count, class V>
CONVTBW_INLINE V elements_in_turn(const V (&lines)[count]) {
  constexpr auto at = [](int lanes, int lane) {
    const int element = part * lanes + lane;
    return element % count * lanes + element / count;
  };
  return lanes_of<at>(lines);
}

// All of them in the lines' place. Lines by halves, of a power of two log2(count) shuffles each.
template <int count, class V>
CONVTBW_INLINE void take_turns(V (&lines)[count]) {
  if constexpr (count % 2 == 0) {
    V even[count / 2], odd[count / 2];
#pragma GCC unroll kUnroll
    for (int i = 0; i < count / 2; ++i) {
      even[i] = lines[2 * i];
      odd[i] = lines[2 * i + 1];
    }
    take_turns(even);
    take_turns(odd);
#pragma GCC unroll kUnroll
    for (int i = 0; i < count / 2; ++i) {
      const V pair[]{even[i], odd[i]};
      lines[2 * i] = elements_in_turn<0>(pair);
      lines[2 * i + 1] = elements_in_turn<1>(pair);
    }
  } else if constexpr (count > 1) {
    V all[count];
#pragma GCC unroll kUnroll
    for (int i = 0; i < count; ++i) all[i] = lines[i];
    [&]<int... part>(std::integer_sequence<int, part...>) __attribute__((always_inline)) {
      ((lines[part] = elements_in_turn<part>(all)), ...);
    }(std::make_integer_sequence<int, count>());
  }
}

// Up to so many columns side by side. As blocks that are mostly empty, fprop of up to 4 channels
// took 1.3 to 1.9 times as long with 16 lanes, 1.05 to 1.4 with 8 (Zen 5), wgrad of 5 and 6 1.03 to
// 1.2 with 16, of 7 and 8 1.1 to 1.19, dgrad from 8, channels last, up to 1.18 (Zen 4).
#if defined(__AVX512F__)
constexpr int kMostInTurn = 8;
#else
constexpr int kMostInTurn = 4;
#endif

// Calls f with the constant that `count` is. Whether it is one of 1 to kMostInTurn.
template <class F>
CONVTBW_INLINE bool with_few(int64_t count, F f) {
  return [&]<int... before>(std::integer_sequence<int, before...>) __attribute__((always_inline)) {
    return ((count == before + 1 && (f(std::integral_constant<int, before + 1>{}), true)) || ...);
  }(std::make_integer_sequence<int, kMostInTurn>());
}

// The reverse.
template <int count, class V>
CONVTBW_INLINE void deal_in_turn(V (&lines)[count]) {
  if constexpr (count % 2 == 0) {
    constexpr auto even_lanes = [](int, int lane) { return 2 * lane; };
    constexpr auto odd_lanes = [](int, int lane) { return 2 * lane + 1; };
    V even[count / 2], odd[count / 2];
#pragma GCC unroll kUnroll
    for (int i = 0; i < count / 2; ++i) {
      even[i] = shuffle<even_lanes>(lines[2 * i], lines[2 * i + 1]);
      odd[i] = shuffle<odd_lanes>(lines[2 * i], lines[2 * i + 1]);
    }
    deal_in_turn(even);
    deal_in_turn(odd);
#pragma GCC unroll kUnroll
    for (int i = 0; i < count / 2; ++i) {
      lines[2 * i] = even[i];
      lines[2 * i + 1] = odd[i];
    }
  } else if constexpr (count > 1) {
    V all[count];
#pragma GCC unroll kUnroll
    for (int i = 0; i < count; ++i) all[i] = lines[i];
    [&]<int... row>(std::integer_sequence<int, row...>) __attribute__((always_inline)) {
      ((lines[row] = lanes_of<[](int, int lane) { return lane * count + row; }>(all)), ...);
    }(std::make_integer_sequence<int, count>());
  }
}

template <int columns, class From, class To>
void copy_in_turn(const Copy& c, From from) {
  constexpr int n = kLanes<typename From::Unit>;
  for (int64_t next = 0; next < c.rows; next += n) {
    const int64_t row = smaller(next, c.rows - n);  // overlapping the rows before
    const From block = from.at(row * From::kElements);
    Vector<typename From::Unit> lines[columns];
#pragma GCC unroll kUnroll
    for (int j = 0; j < columns; ++j)
      if constexpr (kSplit<From>)
        lines[j] = column_of(c, block, j, j == columns - 1, true, n);
      else
        lines[j] = block.at(j * c.from_column).all();
    To* const to = static_cast<To*>(c.to) + row * columns;
    take_turns(lines);
#pragma GCC unroll kUnroll
    for (int part = 0; part < columns; ++part) store(to + part * n, lines[part]);
  }
}

// Whether there were as few columns.
template <class From, class To>
bool copy_few_in_turn(const Copy& c, From from) {
  if (c.to_row != c.columns || c.zeros || c.rows < kLanes<typename From::Unit>) return false;
  return with_few(c.columns, [&](auto columns) { copy_in_turn<columns, From, To>(c, from); });
}

// The reverse: so many rows, whose elements are dealt from one run.
template <int rows, class From, class To>
void copy_out_of_turn(const Copy& c, From from) {
  constexpr int n = kLanes<typename From::Unit>;
  for (int64_t next = 0; next < c.columns; next += n) {
    const int64_t column = smaller(next, c.columns - n);  // overlapping the columns before
    Vector<typename From::Unit> lines[rows];
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i) lines[i] = from.at(column * rows + i * n).all();
    To* const to = static_cast<To*>(c.to) + column;
    deal_in_turn(lines);
#pragma GCC unroll kUnroll
    for (int row = 0; row < rows; ++row) store(to + row * c.to_row, lines[row]);
  }
  if (c.zeros)
    for (int64_t row = 0; row < rows; ++row)
      clear(static_cast<To*>(c.to) + row * c.to_row + c.columns, c.zeros);
}

// Whether there were as few rows.
template <class From, class To>
bool copy_few_out_of_turn(const Copy& c, From from) {
  if (From::kElements > 1 || c.from_column != c.rows || c.odd ||
      c.columns < kLanes<typename From::Unit> || c.rows < 2)
    return false;
  return with_few(c.rows, [&](auto rows) { copy_out_of_turn<rows, From, To>(c, from); });
}

// The lower halves of all words, and the upper ones.
CONVTBW_INLINE void store_halves(uint16_t* lower, uint16_t* upper, Words v) {
#if defined(__AVX512BW__)
  constexpr auto lower_first = [](int lanes, int j) { return 2 * j % lanes + 2 * j / lanes; };
  const WideShorts elements = reinterpret_cast<WideShorts>(v);
  const __m512i halves = reinterpret_cast<__m512i>(shuffle<lower_first>(elements, elements));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower), _mm512_castsi512_si256(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper), _mm512_extracti64x4_epi64(halves, 1));
#else
  store(lower, v & 0xffff);
  store(upper, v >> 16);
#endif
}

// Two square blocks of elements of 16 bits are transposed in registers as pairs. Of fewer columns,
// but more than are copied in turn, rows follow each other in the destination: zeros behind the
// last column are overwritten with the next rows.
CONVTBW_INLINE void copy_paired_block(const Copy& c, const uint16_t* from, uint16_t* to) {
  constexpr int n = kLanes<uint32_t>;
  Words lines[n];
#pragma GCC unroll kUnroll
  for (int j = 0; j < n; ++j)
    lines[j] =
        j < c.columns ? *reinterpret_cast<const WordsOfShorts*>(from + j * c.from_column) : Words{};
  transpose(lines);
#pragma GCC unroll kUnroll
  for (int i = 0; i < n; ++i, to += 2 * c.to_row) {
    const int rows = 2 * (n - i) - 1;  // the second of the two, and those behind it
    if (rows * (kMostInTurn + 1) >= n || rows * c.columns >= n) {
      store_halves(to, to + c.to_row, lines[i]);
    } else {
      store_some(to, lines[i] & 0xffff, c.columns);
      store_some(to + c.to_row, lines[i] >> 16, c.columns);
    }
  }
}

CONVTBW_INLINE void copy_paired_blocks(const Copy& c, Halfwords from) {
  constexpr int64_t n = kLanes<uint32_t>;
  for (int64_t column = 0; column < c.columns; column += n)
    for (int64_t row = 0; row < c.rows; row += 2 * n) {
      // The last block overlaps the one before.
      const int64_t i = smaller(row, c.rows - 2 * n);
      const int64_t j = column ? smaller(column, c.columns - n) : 0;
      copy_paired_block(c, from.at(i + j * c.from_column).p,
                        static_cast<uint16_t*>(c.to) + i * c.to_row + j);
    }
}

// Blocks as wide as a cache line, so that a line is read once and written once even where rows lie
// a multiple of the cache's size apart, as the planes of images do. The inner loop follows
// whichever tensor has its lines further apart.
template <bool dealt, class From, class To>
__attribute__((noinline)) void copy_transposed(const Copy& call, From from) {
  constexpr int n = kLanes<typename From::Unit>, line = 64 / sizeof(typename From::Unit);
  if constexpr (std::is_same_v<From, Halfwords> && !dealt) {
    if (copy_few_in_turn<ManyHalfwords, uint16_t>(call, {from.p})) return;
    if (call.rows >= 2 * n && (call.columns >= n || (call.to_row == call.columns && !call.zeros)))
      return copy_paired_blocks(call, from);
  }
  if constexpr (!dealt)
    if (copy_few_in_turn<From, To>(call, from)) return;
  // Fields in registers: of pairs 0.85 of the time, of single elements 1.07.
  const std::conditional_t<kSplit<From>, Copy, const Copy&> c = call;
  const bool rows_inside = c.from_column >= c.to_row;
  const int64_t outer_count = rows_inside ? c.columns : c.rows;
  const int64_t inner_count = rows_inside ? c.rows : c.columns;
  for (int64_t outer = 0; outer < outer_count; outer += line)
    for (int64_t inner = 0; inner < inner_count; inner += line) {
      const int64_t row = rows_inside ? inner : outer, column = rows_inside ? outer : inner;
      // The last block overlaps the one before.
      const auto block = [&](int64_t i, int64_t j) __attribute__((always_inline)) {
        if (i < c.rows && j < c.columns)
          copy_block<dealt, From, To>(c, from, c.rows >= n ? smaller(i, c.rows - n) : i,
                                      c.columns >= n ? smaller(j, c.columns - n) : j);
      };
      for (int64_t far = 0; far < line; far += n)
        for (int64_t near = 0; near < line; near += n)
          block(row + (rows_inside ? near : far), column + (rows_inside ? far : near));
    }
  if (c.zeros) {
    RowPlaces<dealt, To> places(c, 0);
    for (int64_t i = 0; i < c.rows; ++i) clear(places.next() + c.columns, c.zeros);
  }
}

// Rows are neighbours in the source, or as EverySecond has them; columns are in the destination.
template <class From, class To>
void copy_turning(const Copy& c, From from) {
  if (c.deal > 1)
    copy_transposed<true, From, To>(c, from);
  else if (!copy_few_out_of_turn<From, To>(c, from))
    copy_transposed<false, From, To>(c, from);
}

template <class To, class Element>
bool copy_every_second(const Copy& c, Elements<Element> from) {
  if (c.to_column != 1 || c.from_row != 2) return false;
  copy_turning<EverySecond<Element>, To>(c, {from.p});
  return true;
}
template <class To>
bool copy_every_second(const Copy& c, SplitPairs<Halves::both> from) {
  if (c.to_column != 1 || c.from_row != 2 || c.second < 1 || c.odd) return false;
  copy_turning<EverySecondPair, To>(c, {from.p, from.second});
  return true;
}
template <class To, class From>
bool copy_every_second(const Copy&, From) {
  return false;
}

CONVTBW_INLINE Copy turned(Copy c) {
  const Copy before = c;
  c.from_row = before.from_column;
  c.from_column = before.from_row;
  c.to_row = before.to_column;
  c.to_column = before.to_row;
  c.rows = before.columns;
  c.columns = before.rows;
  return c;
}

// Any strides: gathers a vector's worth, of the longer side, converts, and scatters it.
template <class From, class To>
__attribute__((noinline)) void copy_elements(const Copy& call, From from) {
  const Copy c = call.rows > call.columns && !call.zeros ? turned(call) : call;
  constexpr int n = kLanes<typename From::Unit>;
  To* to = static_cast<To*>(c.to);
  for (int64_t row = 0; row < c.rows; ++row, to += c.to_row, from = from.at(c.from_row)) {
    for (int64_t column = 0; column < c.columns; column += n) {
      const int64_t count = c.columns - column < n ? c.columns - column : n;
      To few[n];
      store(few, from.at(column * c.from_column).gather(c.from_column, count));
      for (int64_t i = 0; i < count; ++i) to[(column + i) * c.to_column] = few[i];
    }
    for (int64_t column = c.columns; column < c.columns + c.zeros; ++column)
      to[column * c.to_column] = To{};
  }
}

template <class From, class To>
CONVTBW_INLINE void copy_panel(const Copy& c, From from) {
  if (c.to_column == 1 && c.from_row == From::kElements)
    copy_turning<From, To>(c, from);
  else if (!copy_every_second<To>(c, from))
    copy_elements<From, To>(c, from);
}

// What it calls is not inlined: with all of it in the loop over several matrices, copies of small
// ones took up to 1.4 times as long.
template <class From, class To>
void copy(Copy c, From from) {
  constexpr int64_t unit = From::kElements;
  // Contiguous columns in the destination.
  if (!c.zeros && c.to_row == 1 && c.to_column != 1) c = turned(c);
  const bool rows = c.to_column == 1 && c.from_column == unit;
  // Rows that follow each other are one. Not of odd pairs: what follows each row is another
  // tensor's, and may be NaN.
  if (rows && !c.zeros && !c.odd && c.panels == 1 && c.from_row == c.columns * unit &&
      c.to_row == c.columns) {
    c.columns *= c.rows;
    c.rows = c.times;
    c.from_row = c.from_time;
    c.to_row = c.to_time;
    c.times = 1;
  }
  char* const to = static_cast<char*>(c.to);
  const int64_t panels = rows ? 1 : c.panels;  // those of rows are copied together
  for (int64_t time = 0; time < c.times; ++time)
    for (int64_t panel = 0; panel < panels; ++panel) {
      c.to = to + (time * c.to_time + panel * c.to_panel) * int64_t{sizeof(To)};
      const From source = from.at(time * c.from_time + panel * c.from_panel);
      if (rows)
        copy_rows<From, To>(c, source);
      else
        copy_panel<From, To>(c, source);
    }
}

template <class Element, class To>
void copy_elements_of(const Copy& c) {
  copy<Elements<Element>, To>(c, {static_cast<const Element*>(c.from)});
}

#ifdef CONVTBW_PAIRS
void copy_halves(const Copy& c) {
  copy<Halfwords, uint16_t>(c, {static_cast<const uint16_t*>(c.from)});
}

void copy_pairs(const Copy& c) {
  const bfloat16* const from = static_cast<const bfloat16*>(c.from);
  const int64_t second = c.second;
  const bool adjacent = second == 1 && c.halves == Halves::both;
  if (c.odd && (c.to_column != 1 || (adjacent ? c.from_column != 2 : c.from_row != 1))) {
    Copy pairs = c, last = c;
    pairs.odd = last.odd = false;
    pairs.zeros = 0;
    if (--pairs.columns) copy_pairs(pairs);
    last.from = from + pairs.columns * c.from_column;
    last.to = static_cast<uint32_t*>(c.to) + pairs.columns * c.to_column;
    last.columns = 1;
    last.halves = Halves::first;
    return copy_pairs(last);
  }
  if (c.halves == Halves::first)
    copy<SplitPairs<Halves::first>, uint32_t>(c, {from, second});
  else if (c.halves == Halves::second)
    copy<SplitPairs<Halves::second>, uint32_t>(c, {from, second});
  else if (adjacent && (c.from_column == 2 || c.from_row == 2))
    copy<AdjacentPairs, uint32_t>(c, {from});
  else
    copy<SplitPairs<Halves::both>, uint32_t>(c, {from, second});
}
#endif

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
