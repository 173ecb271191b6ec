// The register tile (kernels.h, TileCall). Its accumulators must stay in registers: with GCC 12
// they do when they are the member of a struct, every loop over them is unrolled by pragma and the
// file is compiled with -O3; tests/test_disassembly.py looks. Included by kernels.cpp alone.
#pragma once

#include <type_traits>

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

// GCC does not see that sums which were never folded are never read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// How an arithmetic multiplies and adds.
template <class T>
struct Plain {
  using Unit = T;
  using Sum = T;
  static constexpr bool kPairs = false;
  static CONVTBW_INLINE T row_at(const T* a, int64_t row) { return a[row]; }
  static CONVTBW_INLINE Vector<T> multiply_add(T a, Vector<T> b, Vector<T> sum) {
    return sum + a * b;
  }
};

// Two products of bfloat16 a lane. Exact products and sums in float32, the lower element first.
struct Bfloat16Pairs {
  using Unit = uint32_t;
  using Sum = float;
  static constexpr bool kPairs = true;
  static CONVTBW_INLINE uint32_t row_at(const uint32_t* a, int64_t row) {
    using Word = uint32_t __attribute__((aligned(2), may_alias));
    return *reinterpret_cast<const Word*>(reinterpret_cast<const uint16_t*>(a) + row);
  }
  static CONVTBW_INLINE uint32_t first_at(const uint32_t* a, int64_t row) {
    return reinterpret_cast<const uint16_t*>(a)[row];
  }
  static CONVTBW_INLINE Floats multiply_add(uint32_t a, Words b, Floats sum) {
    return multiply_add(Words{} + a, b, sum);
  }
  static CONVTBW_INLINE Floats multiply_add(Words a, Words b, Floats sum) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
    sum += reinterpret_cast<Floats>(a << 16) * reinterpret_cast<Floats>(b << 16);
    return sum +
           reinterpret_cast<Floats>(a & 0xffff0000) * reinterpret_cast<Floats>(b & 0xffff0000);
#endif
  }
};

// Operands come from the second-level cache, and Intel's prefetchers do not keep up with two
// streams: asked for so many bytes ahead, adjacent rows of 512 steps run at 0.96 of the full rate
// instead of 0.72 (6x2, 8 lanes), 0.97 instead of 0.71 (6x4, 16); gathered ones 1.05 to 1.3 times
// as fast (Ice Lake).
template <int bytes>
CONVTBW_INLINE void fetch_ahead(const void* p, int64_t ahead) {
  if constexpr (bytes >= 64) {
#pragma GCC unroll kUnroll
    for (int64_t at = 0; at < bytes; at += 64)
      __builtin_prefetch(static_cast<const char*>(p) + ahead + at);
  }
}

// With few steps a tile's wait for the lines of its result took 20 % of the time (64 channels,
// AVX-512, Zen 4). bytes: of a row.
template <int rows, int bytes>
CONVTBW_INLINE void fetch_result(const TileCall& call, int64_t element) {
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
    for (int at = 0; at < bytes; at += 64)
      __builtin_prefetch(static_cast<const char*>(call.c) + call.c_rows[i] * element + at, 1);
}

// Rows of a tile's sums to elements of the result. The lanes behind the live ones belong to a
// neighbour, or lie beyond the result. One function for all tiles.
template <class To, class Sum>
__attribute__((noinline)) void write_part(const TileCall& call, int rows, int width,
                                          const Sum* sums, To* const* c) {
  constexpr int n = kLanes<Sum>;
  const auto added = [&](Vector<Sum> sum, const auto& result) __attribute__((always_inline)) {
    if constexpr (std::is_same_v<To, Sum>)
      if (call.start == Start::accumulate) return sum + result();
    return sum;
  };
  for (int i = 0; i < rows; ++i, sums += width) {
    if (call.live < n) {
      store_some(c[i], added(load(sums), [&] { return load_some(c[i], call.live); }), call.live);
      continue;
    }
    const auto sum_at = [&](int64_t lane) __attribute__((always_inline)) {
      return added(load(sums + lane), [&] { return load(c[i] + lane); });
    };
    const Vector<Sum> last = sum_at(call.live - n);  // overlaps the one before
    for (int64_t lane = 0; lane < call.live - n; lane += n) store(c[i] + lane, sum_at(lane));
    store(c[i] + call.live - n, last);
  }
}

// What a call says is read again behind the loop over steps. In registers across it, GCC 12 had the
// loop's own pointer and counter in memory: 1.2 times the time (5x2, 8 lanes).
CONVTBW_INLINE void forget_memory() { asm volatile("" ::: "memory"); }

template <class A, int rows, int vectors>
struct Accumulators {
  using Sum = typename A::Sum;
  static constexpr int kWidth = kLanes<Sum>;

  Vector<Sum> sums[rows][vectors];
  Vector<Sum> folded[rows][vectors];  // in memory; set by the first fold
  bool any_folded = false;

  CONVTBW_INLINE void start(const TileCall& call) {
    Vector<Sum> first[vectors];
#pragma GCC unroll kUnroll
    for (int j = 0; j < vectors; ++j)
      first[j] = call.start == Start::bias ? load(static_cast<const Sum*>(call.bias) + j * kWidth)
                                           : Vector<Sum>{};
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) sums[i][j] = first[j];
  }

  // left(i): of row i of a.
  template <class Left>
  CONVTBW_INLINE void step(const typename A::Unit* b, const Left& left) {
    Vector<typename A::Unit> right[vectors];
#pragma GCC unroll kUnroll
    for (int j = 0; j < vectors; ++j) right[j] = load(b + j * kWidth);
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i) {
      const typename A::Unit l = left(i);
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) sums[i][j] = A::multiply_add(l, right[j], sums[i][j]);
    }
  }

  // Puts the sums aside and begins new ones.
  CONVTBW_INLINE void fold() {
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) {
        folded[i][j] = any_folded ? folded[i][j] + sums[i][j] : sums[i][j];
        sums[i][j] = Vector<Sum>{};
      }
    any_folded = true;
  }

  // row(i): where row i of c begins, in elements.
  template <class Row>
  CONVTBW_INLINE void finish(const TileCall& call, const Row& row) {
    if (any_folded) {
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
        for (int j = 0; j < vectors; ++j) sums[i][j] += folded[i][j];
    }
    if constexpr (std::is_same_v<Sum, float>) {
      if (call.result == Dtype::bf16) return write<bfloat16>(call, row);
      if (call.result == Dtype::f16) return write<float16>(call, row);
    }
    write<Sum>(call, row);
  }

  template <class To, class Row>
  CONVTBW_INLINE void write(const TileCall& call, const Row& row) {
    To* const first = static_cast<To*>(call.c);
    const bool part = call.live < vectors * kWidth;
    if (part && (!call.rows_follow || call.start == Start::accumulate)) {
      To* c[rows];
      Sum all[rows * vectors * kWidth];
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i) {
        c[i] = first + row(i);
#pragma GCC unroll kUnroll
        for (int j = 0; j < vectors; ++j) store(all + (i * vectors + j) * kWidth, sums[i][j]);
      }
      return write_part(call, rows, vectors * kWidth, all, c);
    }
    if constexpr (std::is_same_v<To, Sum>) {
      if (call.start == Start::accumulate) {
#pragma GCC unroll kUnroll
        for (int i = 0; i < rows; ++i) {
          const To* const c = first + row(i);
#pragma GCC unroll kUnroll
          for (int j = 0; j < vectors; ++j) sums[i][j] += load(c + j * kWidth);
        }
      }
    }
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows - 1; ++i) {
      To* const c = first + row(i);
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) store(c + j * kWidth, sums[i][j]);
    }
    To* const c = first + row(rows - 1);
    if (part) {
      Sum last[vectors * kWidth];
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) store(last + j * kWidth, sums[rows - 1][j]);
      return write_part(call, 1, vectors * kWidth, last, &c);
    }
#pragma GCC unroll kUnroll
    for (int j = 0; j < vectors; ++j) store(c + j * kWidth, sums[rows - 1][j]);
  }
};

template <class A, int rows, int vectors>
void gathered_tile(const TileCall& call) {
  using Unit = typename A::Unit;
  using Sum = typename A::Sum;
  int64_t offsets[rows];
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i) offsets[i] = call.a_rows[i];

  if (call.fetches_result && call.rows_follow) {
    const char* const c =
        static_cast<const char*>(call.c) + call.c_rows[0] * element_bytes(call.result);
    for (int64_t at = 0; at < rows * call.live * element_bytes(call.result); at += 64)
      __builtin_prefetch(c + at, 1);
  } else if (call.fetches_result) {
    if (element_bytes(call.result) < int64_t{sizeof(Sum)})
      fetch_result<rows, vectors * kBytes / 2>(call, sizeof(Sum) / 2);
    else
      fetch_result<rows, vectors * kBytes>(call, sizeof(Sum));
  }
  Accumulators<A, rows, vectors> tile;
  tile.start(call);
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const Unit* a = static_cast<const Unit*>(call.a) + run->a;
    const Unit* b = static_cast<const Unit*>(call.b) + run->b;
    for (int64_t k = run->steps; k > 0; --k) {
      // A constant: the offsets of rows leave no register. Not of one vector, which loads as much
      // as it multiplies: 1.05 times as long (16 lanes, Zen 5).
      if constexpr (vectors > 1) fetch_ahead<vectors * kBytes>(b, kAheadBytes);
      tile.step(b, [&](int i) __attribute__((always_inline)) { return A::row_at(a, offsets[i]); });
      ++a;
      b += vectors * kLanes<Sum>;
    }
    if constexpr (A::kPairs)
      if (run->half_step)
        tile.step(b,
                  [&](int i) __attribute__((always_inline)) { return A::first_at(a, offsets[i]); });
    forget_memory();
    if (run->fold) tile.fold();
  }
  tile.finish(call, [&](int i) { return call.c_rows[i]; });
}

template <class A, int rows, int vectors>
void adjacent_tile(const TileCall& call) {
  using Unit = typename A::Unit;
  const int64_t a_step = call.a_step, b_step = call.b_step;
  const int64_t a_ahead = call.a_ahead, b_ahead = call.b_ahead;

  Accumulators<A, rows, vectors> tile;
  tile.start(call);
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const Unit* a = static_cast<const Unit*>(call.a) + run->a;
    const Unit* b = static_cast<const Unit*>(call.b) + run->b;
    for (int64_t k = run->steps; k > 0; --k) {
      fetch_ahead<64>(a, a_ahead);
      fetch_ahead<vectors * kBytes>(b, b_ahead);
      tile.step(b, [&](int i) __attribute__((always_inline)) { return a[i]; });
      a += a_step;
      b += b_step;
    }
    forget_memory();
    if (run->fold) tile.fold();
  }
  tile.finish(call, [&](int i) { return i * call.c_row; });
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
