// AMX's matrix registers, or the same in portable code: eight of up to 16 rows of 64 bytes.
// Included by matrix_tile.h alone.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

constexpr int kMatrices = 8, kMatrixRows = 16, kMatrixRowBytes = 64;
constexpr int kMatrixLanes = kMatrixRowBytes / 4;

// The operand of LDTILECFG: how many rows each register has, all of them of whole rows of bytes.
struct alignas(64) MatrixShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14]{};
  uint16_t row_bytes[16]{};
  uint8_t rows[16]{};

  constexpr void set(int matrix, int count) {
    row_bytes[matrix] = count ? kMatrixRowBytes : 0;
    rows[matrix] = static_cast<uint8_t>(count);
  }
};
static_assert(sizeof(MatrixShapes) == 64);

#if defined(CONVTBW_AMX)

// Instructions by name: GCC's intrinsics do not say that memory is read.
class Matrices {
 public:
  // Setting shapes takes 44 ns, asking for them 4 (a tile of 32x32 and 576 products 320). They are
  // asked for, since others that use the registers, oneDNN for one, leave theirs or none. Nobody
  // releases them behind a tile: a thread that keeps them costs the system a larger context.
  CONVTBW_INLINE explicit Matrices(const MatrixShapes& shapes) {
    MatrixShapes present;
    asm volatile("sttilecfg %0" : "=m"(present));
    const auto bits = [](const MatrixShapes& s) { return _mm512_load_si512(&s); };
    if (_mm512_cmpneq_epi64_mask(bits(present), bits(shapes)))
      asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  template <int to>
  CONVTBW_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(to));
  }
  template <int to>
  CONVTBW_INLINE void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(to) : "memory");
  }
  template <int from>
  CONVTBW_INLINE void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(from) : "memory");
  }
  // sums[i][j] += a[i][k] * b[k][j], of which a and b hold pairs of bfloat16.
  template <int sums, int a, int b>
  CONVTBW_INLINE void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  }
};

#else

class Matrices {
 public:
  explicit Matrices(const MatrixShapes& shapes) : shapes_(shapes) {}
  template <int to>
  void clear() {
    matrices_[to] = {};
  }
  template <int to>
  void load(const void* from, int64_t row_bytes) {
    for (int i = 0; i < shapes_.rows[to]; ++i)
      std::memcpy(&matrices_[to][i], static_cast<const char*>(from) + i * row_bytes,
                  kMatrixRowBytes);
  }
  template <int from>
  void store(void* to, int64_t row_bytes) {
    for (int i = 0; i < shapes_.rows[from]; ++i)
      std::memcpy(static_cast<char*>(to) + i * row_bytes, &matrices_[from][i], kMatrixRowBytes);
  }
  template <int sums, int a, int b>
  void multiply_add() {
    for (int i = 0; i < shapes_.rows[sums]; ++i)
      for (int k = 0; k < kMatrixRows; ++k)
        for (int j = 0; j < kMatrixLanes; ++j) {
          const uint32_t left = matrices_[a][i][k], right = matrices_[b][k][j];
          float sum = value(matrices_[sums][i][j]);
          sum += value(left << 16) * value(right << 16);
          sum += value(left & 0xffff0000) * value(right & 0xffff0000);
          std::memcpy(&matrices_[sums][i][j], &sum, sizeof(sum));
        }
  }

 private:
  static float value(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  const MatrixShapes shapes_;
  std::array<std::array<std::array<uint32_t, kMatrixLanes>, kMatrixRows>, kMatrices> matrices_;
};

#endif

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
