// The register tile (kernels.h, TileCall) of pairs of bfloat16 in matrix registers, which multiply
// 16 steps of 16 rows by a vector at a time. Included by matrix_tiles.cpp alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/matrix_registers.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

constexpr int64_t kChunkSteps = kMatrixRows;  // of a multiplication

// The registers: sums of the first 16 rows and of those behind them, of two vectors each; or of 16
// rows of up to four vectors. Four sums at least keep the multiplier busy.
constexpr bool takes_two_halves(int vectors) { return vectors <= 2; }
constexpr int most_matrix_rows(int vectors) {
  return takes_two_halves(vectors) ? 2 * kMatrixRows : kMatrixRows;
}
constexpr int sum_matrix(int half, int vector) { return 2 * half + vector; }
constexpr int row_matrix(int half) { return 4 + half; }
constexpr int lane_matrix(int vectors, int vector) {
  return takes_two_halves(vectors) ? 6 + vector : 5 + vector % 3;
}

struct MatrixShapesOfRows {
  MatrixShapes at[2 * kMatrixRows + 1];

  constexpr explicit MatrixShapesOfRows(int vectors) {
    for (int rows = 1; rows <= most_matrix_rows(vectors); ++rows) {
      const int first = rows < kMatrixRows ? rows : kMatrixRows;
      for (int i = 0; i < 4; ++i)
        at[rows].set(i, takes_two_halves(vectors) && i >= 2 ? rows - first : first);
      at[rows].set(4, first);
      at[rows].set(5, takes_two_halves(vectors) ? rows - first : kMatrixRows);
      at[rows].set(6, kMatrixRows);
      at[rows].set(7, kMatrixRows);
    }
  }
};
template <int vectors>
constexpr MatrixShapesOfRows kMatrixShapes(vectors);

// Steps of a run, which may be a part of a chunk; with half_step the last one has first elements
// alone.
struct MatrixPiece {
  const Run& run;
  int64_t step, steps;  // of the run
  bool half_step;
  int64_t place;  // in the chunk
};

// Where the operands of 16 steps lie: the rows of each half, the vectors.
struct MatrixChunk {
  const void* a[2];
  int64_t a_row[2];  // bytes
  const void* b;
  int64_t b_row;
  bool fold;
};

// A place for operands that registers cannot take where they lie. Two: what one chunk needs is
// written while the one before is multiplied, for a load that waits for its stores takes 2.6 times
// as long as the multiplication.
struct alignas(64) MatrixBuffer {
  uint32_t a[2][kMatrixRows][kChunkSteps];
  uint32_t b[kChunkSteps][kMaxVectors * kMatrixLanes];
};

alignas(64) constexpr uint32_t kNoStep[kMaxVectors * kMatrixLanes] = {};

template <int halves, int vectors>
class MatrixTile {
 public:
  CONVTBW_INLINE MatrixTile(const TileCall& call, int rows)
      : call_(call), rows_(rows), matrices_(kMatrixShapes<vectors>.at[rows]) {
    clear();
  }

  // Whole chunks of a run, as long as there are any, and chunks of what is left of several.
  // rows.whole(half, piece, buffer, row_bytes): where the rows of a half lie; or copies them.
  // rows.add(piece, buffer), rows.finish(steps, buffer): copies those of several pieces, with zeros
  // behind so many steps. b_step: units from one step to the next.
  template <class Rows>
  CONVTBW_INLINE void sum(int64_t b_step, Rows rows) {
    MatrixBuffer buffers[2];
    const Run *run = call_.runs, *const end = run + call_.run_count;
    if (run == end) return;
    int64_t step = 0;
    int turn = 0;
    const auto next = [&]() __attribute__((always_inline)) {
      MatrixBuffer& buffer = buffers[turn];
      turn ^= 1;
      MatrixChunk chunk{{}, {}, nullptr, b_step * 4, false};
      const uint32_t* b[kChunkSteps];
      b[0] = kNoStep;
      int64_t filled = 0;
      bool b_follows = true;
      do {
        const int64_t all = run->steps + run->half_step;
        const int64_t steps = smaller(kChunkSteps - filled, all - step);
        const bool last = step + steps == all;
        const MatrixPiece piece{*run, step, steps, last && run->half_step, filled};
        const auto* const from = static_cast<const uint32_t*>(call_.b) + run->b + step * b_step;
        chunk.fold = last && run->fold;
        step = last ? 0 : step + steps;
        run += last;
        if (steps == kChunkSteps && !piece.half_step) {
#pragma GCC unroll kUnroll
          for (int half = 0; half < halves; ++half)
            chunk.a[half] = rows.whole(half, piece, buffer, chunk.a_row[half]);
          chunk.b = from;
          return chunk;
        }
        b_follows &= filled == 0 || from == b[filled - 1] + b_step;
        for (int64_t k = 0; k < steps; ++k) b[filled + k] = from + k * b_step;
        rows.add(piece, buffer);
        filled += steps;
      } while (filled < kChunkSteps && run != end && !chunk.fold);
      rows.finish(filled, buffer);
#pragma GCC unroll kUnroll
      for (int half = 0; half < halves; ++half) {
        chunk.a[half] = buffer.a[half];
        chunk.a_row[half] = kMatrixRowBytes;
      }
      chunk.b = b[0];
      if (filled == kChunkSteps && b_follows) return chunk;
      // Behind the last step zeros: what lies there could be infinite.
      for (int64_t k = 0; k < kChunkSteps; ++k) {
        const uint32_t* const row = k < filled ? b[k] : kNoStep;
#pragma GCC unroll kUnroll
        for (int j = 0; j < kWidth; j += kMatrixLanes)
          simd::CONVTBW_TARGET::store(buffer.b[k] + j, load(row + j));
      }
      chunk.b = buffer.b;
      chunk.b_row = sizeof(buffer.b[0]);
      return chunk;
    };
    MatrixChunk chunk = next();
    while (run != end) {
      const MatrixChunk following = next();
      multiply(chunk);
      chunk = following;
    }
    multiply(chunk);
  }

  // row(i): where row i of c begins, in elements.
  template <class Row>
  CONVTBW_INLINE void finish(const Row& row) {
    alignas(64) float sums[halves * kMatrixRows * kWidth];
    store(sums);
    if (call_.result == Dtype::bf16) return write<bfloat16>(sums, row);
    if (call_.result == Dtype::f16) return write<float16>(sums, row);
    write<float>(sums, row);
  }

 private:
  static constexpr int kWidth = vectors * kMatrixLanes;

  CONVTBW_INLINE void clear() {
    each_sum([&]<int half, int vector>() __attribute__((always_inline)) {
      matrices_.template clear<sum_matrix(half, vector)>();
    });
  }

  CONVTBW_INLINE void store(float* sums) {
    each_sum([&]<int half, int vector>() __attribute__((always_inline)) {
      matrices_.template store<sum_matrix(half, vector)>(
          sums + half * kMatrixRows * kWidth + vector * kMatrixLanes, kWidth * 4);
    });
    if (!any_folded_) return;
    for (int i = 0; i < rows_ * kWidth; i += kMatrixLanes)
      simd::CONVTBW_TARGET::store(sums + i, load(sums + i) + load(folded_ + i));
  }

  CONVTBW_INLINE void multiply(const MatrixChunk& chunk) {
    matrices_.template load<row_matrix(0)>(chunk.a[0], chunk.a_row[0]);
    if constexpr (halves == 2) matrices_.template load<row_matrix(1)>(chunk.a[1], chunk.a_row[1]);
    each_vector([&]<int vector>() __attribute__((always_inline)) {
      constexpr int b = lane_matrix(vectors, vector);
      matrices_.template load<b>(static_cast<const uint32_t*>(chunk.b) + vector * kMatrixLanes,
                                 chunk.b_row);
      matrices_.template multiply_add<sum_matrix(0, vector), row_matrix(0), b>();
      if constexpr (halves == 2)
        matrices_.template multiply_add<sum_matrix(1, vector), row_matrix(1), b>();
    });
    if (chunk.fold) fold();
  }

  // Puts the sums aside and begins new ones.
  __attribute__((noinline)) void fold() {
    alignas(64) float sums[halves * kMatrixRows * kWidth];
    store(sums);
    std::memcpy(folded_, sums, sizeof(sums));
    any_folded_ = true;
    clear();
  }

  template <class To, class Row>
  CONVTBW_INLINE void write(const float* sums, const Row& row) const {
    To* const first = static_cast<To*>(call_.c);
    for (int i = 0; i < rows_; ++i, sums += kWidth) {
      To* const c = first + row(i);
      // Whole vectors where what lies behind the live lanes is written afterwards.
      const bool whole = call_.rows_follow && call_.start != Start::accumulate && i < rows_ - 1;
      const int64_t live = whole ? kWidth : call_.live;
      for (int j = 0; j < live; j += kMatrixLanes) {
        const int64_t count = smaller(live - j, kMatrixLanes);
        Floats sum = load(sums + j);
        if (call_.start == Start::bias) sum += load(static_cast<const float*>(call_.bias) + j);
        if constexpr (std::is_same_v<To, float>)
          if (call_.start == Start::accumulate)
            sum += count == kMatrixLanes ? load(c + j) : load_some(c + j, count);
        if (count == kMatrixLanes)
          simd::CONVTBW_TARGET::store(c + j, sum);
        else
          store_some(c + j, sum, count);
      }
    }
  }

  template <class F>
  static CONVTBW_INLINE void each_vector(const F& f) {
    [&]<int... vector>(std::integer_sequence<int, vector...>) __attribute__((always_inline)) {
      (f.template operator()<vector>(), ...);
    }(std::make_integer_sequence<int, vectors>());
  }
  template <class F>
  static CONVTBW_INLINE void each_sum(const F& f) {
    each_vector([&]<int vector>() __attribute__((always_inline)) {
      f.template operator()<0, vector>();
      if constexpr (halves == 2) f.template operator()<1, vector>();
    });
  }

  const TileCall& call_;
  const int rows_;
  Matrices matrices_;
  bool any_folded_ = false;
  alignas(64) float folded_[halves * kMatrixRows * kWidth];  // set by the first fold
};

CONVTBW_INLINE int rows_of_half(int rows, int half) {
  return half ? rows - kMatrixRows : rows < kMatrixRows ? rows : kMatrixRows;
}

// With few steps a tile waits for the lines of its result.
CONVTBW_INLINE void fetch_results(const TileCall& call, int rows) {
  const int64_t element = element_bytes(call.result);
  for (int i = 0; i < rows; ++i)
    for (int64_t at = 0; at < call.live * element; at += 64)
      __builtin_prefetch(static_cast<const char*>(call.c) + call.c_rows[i] * element + at, 1);
}

template <int halves>
class GatheredRows {
 public:
  CONVTBW_INLINE GatheredRows(const TileCall& call, int rows) : list_(call.a_rows), rows_(rows) {
    for (int half = 0; half < halves; ++half) {
      const int64_t* const list = list_ + half * kMatrixRows;
      const int count = rows_of_half(rows, half);
      first_[half] = static_cast<const char*>(call.a) + list[0] * 2;
      distance_[half] = count > 1 ? list[1] - list[0] : 0;
      even_[half] = true;
      for (int i = 2; i < count; ++i) even_[half] &= list[i] - list[i - 1] == distance_[half];
    }
  }

  // Rows as far apart as each other are loaded where they lie.
  CONVTBW_INLINE const void* whole(int half, const MatrixPiece& piece, MatrixBuffer& buffer,
                                   int64_t& row_bytes) const {
    row_bytes = even_[half] ? distance_[half] * 2 : kMatrixRowBytes;
    if (even_[half]) return from(half, piece);
    for (int i = 0; i < rows_of_half(rows_, half); ++i)
      store(buffer.a[half][i], *reinterpret_cast<const WordsOfShorts*>(row(half, i, piece)));
    return buffer.a[half];
  }
  CONVTBW_INLINE void add(const MatrixPiece& piece, MatrixBuffer& buffer) const {
    const int64_t elements = 2 * piece.steps - piece.half_step;
    // With zeros up to the 16th step, which the next piece overwrites.
    const int64_t left = kChunkSteps - piece.place;
#pragma GCC unroll kUnroll
    for (int half = 0; half < halves; ++half)
      for (int i = 0; i < rows_of_half(rows_, half); ++i) {
        const Words pairs = load_some_pairs(row(half, i, piece), elements);
        uint32_t* const to = buffer.a[half][i] + piece.place;
        if (left == kChunkSteps)
          store(to, pairs);
        else
          store_some(to, pairs, left);
      }
  }
  CONVTBW_INLINE void finish(int64_t, MatrixBuffer&) const {}

 private:
  CONVTBW_INLINE const char* from(int half, const MatrixPiece& piece) const {
    return first_[half] + (piece.run.a + piece.step) * 4;
  }
  CONVTBW_INLINE const uint16_t* row(int half, int i, const MatrixPiece& piece) const {
    const int64_t* const list = list_ + half * kMatrixRows;
    return reinterpret_cast<const uint16_t*>(from(half, piece) + (list[i] - list[0]) * 2);
  }

  const int64_t* list_;
  int rows_;
  const char* first_[halves];
  int64_t distance_[halves];
  bool even_[halves];
};

template <int halves, int vectors>
__attribute__((noinline)) void gathered_matrix(const TileCall& call, int rows) {
  if (call.fetches_result) fetch_results(call, rows);
  MatrixTile<halves, vectors> tile(call, rows);
  tile.sum(vectors * kMatrixLanes, GatheredRows<halves>(call, rows));
  tile.finish([&](int i) { return call.c_rows[i]; });
}

// Steps are transposed: a register has those of a row side by side.
template <int halves>
class AdjacentRows {
 public:
  CONVTBW_INLINE AdjacentRows(const TileCall& call, int rows) : call_(call), rows_(rows) {}

  CONVTBW_INLINE const void* whole(int half, const MatrixPiece& piece, MatrixBuffer& buffer,
                                   int64_t& row_bytes) const {
    const uint32_t* const first = from(piece);
    const int64_t step = call_.a_step;
    transpose_steps(half, buffer,
                    [&](int k) __attribute__((always_inline)) { return first + k * step; });
    row_bytes = kMatrixRowBytes;
    return buffer.a[half];
  }
  CONVTBW_INLINE void add(const MatrixPiece& piece, MatrixBuffer&) {
    const uint32_t* step = from(piece);
    for (int64_t k = 0; k < piece.steps; ++k, step += call_.a_step) steps_[piece.place + k] = step;
  }
  CONVTBW_INLINE void finish(int64_t steps, MatrixBuffer& buffer) {
    for (int64_t k = steps; k < kChunkSteps; ++k) steps_[k] = kNoStep;
#pragma GCC unroll kUnroll
    for (int half = 0; half < halves; ++half)
      transpose_steps(half, buffer,
                      [&](int k) __attribute__((always_inline)) { return steps_[k]; });
  }

 private:
  CONVTBW_INLINE const uint32_t* from(const MatrixPiece& piece) const {
    return static_cast<const uint32_t*>(call_.a) + piece.run.a + piece.step * call_.a_step;
  }
  template <class Step>
  CONVTBW_INLINE void transpose_steps(int half, MatrixBuffer& buffer, const Step& step) const {
    const int count = rows_of_half(rows_, half);
    Words columns[kChunkSteps];
#pragma GCC unroll kUnroll
    for (int k = 0; k < kChunkSteps; ++k) {
      const uint32_t* const from = step(k) + half * kMatrixRows;
      columns[k] = count == kMatrixRows ? load(from) : load_some(from, count);
    }
    transpose(columns);
#pragma GCC unroll kUnroll
    for (int i = 0; i < kMatrixRows; ++i) store(buffer.a[half][i], columns[i]);
  }

  const TileCall& call_;
  int rows_;
  const uint32_t* steps_[kChunkSteps];
};

template <int halves, int vectors>
__attribute__((noinline)) void adjacent_matrix(const TileCall& call, int rows) {
  MatrixTile<halves, vectors> tile(call, rows);
  tile.sum(call.b_step, AdjacentRows<halves>(call, rows));
  tile.finish([&](int i) { return i * call.c_row; });
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
