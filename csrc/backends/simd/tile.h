// The register tile (kernels.h, TileCall). Its accumulators must stay in registers: with GCC 12
// they do when they are the member of a struct, every loop over them is unrolled by pragma and the
// file is compiled with -O3; tests/test_disassembly.py looks. Included by kernels.cpp alone.
#pragma once

#include "backends/simd/kernels.h"
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
  static CONVTBW_INLINE Vector<T> multiply_add(T a, Vector<T> b, Vector<T> sum) {
    return sum + a * b;
  }
};

// Two products of bfloat16 a lane. Exact products and sums in float32, the lower element first.
struct Bfloat16Pairs {
  using Unit = uint32_t;
  using Sum = float;
  static CONVTBW_INLINE Floats multiply_add(uint32_t a, Words b, Floats sum) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(a)),
                            reinterpret_cast<__m512bh>(b));
#else
    const Words both = Words{} + a;
    sum += reinterpret_cast<Floats>(both << 16) * reinterpret_cast<Floats>(b << 16);
    return sum +
           reinterpret_cast<Floats>(both & 0xffff0000) * reinterpret_cast<Floats>(b & 0xffff0000);
#endif
  }
};

// Operands come from the second-level cache, and Intel's prefetchers do not keep up with two
// streams: asked for so many bytes ahead, adjacent rows of 512 steps run at 0.96 of the full rate
// instead of 0.72 (6x2, 8 lanes), 0.97 instead of 0.71 (6x4, 16); gathered ones 1.05 to 1.3 times
// as fast (Ice Lake). A constant, for a number of steps takes a register; many steps divide it.
constexpr int64_t kAheadBytes = 1536;

template <int bytes>
CONVTBW_INLINE void fetch_ahead(const void* p) {
  if constexpr (bytes >= 64) {
#pragma GCC unroll kUnroll
    for (int64_t at = 0; at < bytes; at += 64)
      __builtin_prefetch(static_cast<const char*>(p) + kAheadBytes + at);
  }
}

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

  // row(i): where row i of a begins, in units from `a`.
  template <class Row>
  CONVTBW_INLINE void step(const typename A::Unit* a, const typename A::Unit* b, const Row& row) {
    Vector<typename A::Unit> right[vectors];
#pragma GCC unroll kUnroll
    for (int j = 0; j < vectors; ++j) right[j] = load(b + j * kWidth);
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i) {
      const typename A::Unit left = a[row(i)];
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) sums[i][j] = A::multiply_add(left, right[j], sums[i][j]);
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

  CONVTBW_INLINE void finish(const TileCall& call, Sum* const (&c)[rows]) {
    if (any_folded) {
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
        for (int j = 0; j < vectors; ++j) sums[i][j] += folded[i][j];
    }
    if (call.live < vectors * kWidth) return finish_part(call, c);
#pragma GCC unroll kUnroll
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) {
        Vector<Sum> sum = sums[i][j];
        if (call.start == Start::accumulate) sum += load(c[i] + j * kWidth);
        store(c[i] + j * kWidth, sum);
      }
  }

  // The lanes behind the live ones belong to a neighbour, or lie beyond the result.
  CONVTBW_INLINE void finish_part(const TileCall& call, Sum* const (&c)[rows]) {
    Sum row[vectors * kWidth];
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < vectors; ++j) store(row + j * kWidth, sums[i][j]);
      if (call.start == Start::accumulate)
        for (int64_t j = 0; j < call.live; ++j) row[j] += c[i][j];
      int64_t j = 0;
      for (; j + kWidth <= call.live; j += kWidth) store(c[i] + j, load(row + j));
      if (call.live >= kWidth)  // overlapping the vector before
        store(c[i] + call.live - kWidth, load(row + call.live - kWidth));
      else
        for (; j < call.live; ++j) c[i][j] = row[j];
    }
  }
};

template <class A, int rows, int vectors>
void gathered_tile(const TileCall& call) {
  using Unit = typename A::Unit;
  using Sum = typename A::Sum;
  int64_t offsets[rows];
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i) offsets[i] = call.a_rows[i];

  Accumulators<A, rows, vectors> tile;
  tile.start(call);
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const Unit* a = static_cast<const Unit*>(call.a) + run->a;
    const Unit* b = static_cast<const Unit*>(call.b) + run->b;
    for (int64_t k = run->steps; k > 0; --k) {
      fetch_ahead<vectors * kBytes>(b);
      tile.step(a, b, [&](int i) { return offsets[i]; });
      ++a;
      b += vectors * kLanes<Sum>;
    }
    if (run->fold) tile.fold();
  }
  // Only now: addresses that live across the loop take its registers.
  Sum* c[rows];
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i) c[i] = static_cast<Sum*>(call.c) + call.c_rows[i];
  tile.finish(call, c);
}

template <class A, int rows, int vectors>
void adjacent_tile(const TileCall& call) {
  using Unit = typename A::Unit;
  using Sum = typename A::Sum;
  const int64_t a_step = call.a_step, b_step = call.b_step;

  Accumulators<A, rows, vectors> tile;
  tile.start(call);
  for (const Run *run = call.runs, *end = run + call.run_count; run != end; ++run) {
    const Unit* a = static_cast<const Unit*>(call.a) + run->a;
    const Unit* b = static_cast<const Unit*>(call.b) + run->b;
    for (int64_t k = run->steps; k > 0; --k) {
      fetch_ahead<64>(a);
      fetch_ahead<vectors * kBytes>(b);
      tile.step(a, b, [](int i) { return i; });
      a += a_step;
      b += b_step;
    }
    if (run->fold) tile.fold();
  }
  Sum* c[rows];
#pragma GCC unroll kUnroll
  for (int i = 0; i < rows; ++i) c[i] = static_cast<Sum*>(call.c) + i * call.c_row;
  tile.finish(call, c);
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
