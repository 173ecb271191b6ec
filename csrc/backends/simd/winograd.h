// Transforms of Winograd's minimal filtering (kernels.h, Winograd), for windows of three results of
// two taps or two of three. Both share the transform of the operand; the fourth frequency's sign
// is chosen for that. Included by kernels.cpp alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

CONVTBW_INLINE void operand_frequencies(Floats& d0, Floats& d1, Floats& d2, Floats& d3) {
  const Floats sum = d1 + d2, difference = d2 - d1;
  d0 = d0 - d2;
  d3 = d1 - d3;
  d1 = sum;
  d2 = difference;
}

void winograd_operand(const WinogradOperand& c) {
  constexpr int n = kLanes<float>;
  const float* tile_from = static_cast<const float*>(c.from);
  float* tile_to = static_cast<float*>(c.to);
  for (int64_t tile = 0; tile < c.tiles; ++tile, tile_from += c.from_tile, tile_to += c.to_tile)
    for (int64_t channel = 0; channel < c.channels; channel += n) {
      // The last vector overlaps the one before.
      const int64_t first = channel + n <= c.channels ? channel : c.channels - n;
      const float* from = tile_from + first;
      float* to = tile_to + first;
      Floats d[4][4];
#pragma GCC unroll kUnroll
      for (int j = 0; j < 4; ++j) {
#pragma GCC unroll kUnroll
        for (int i = 0; i < 4; ++i) d[i][j] = load(from + i * c.row + j * c.position);
        operand_frequencies(d[0][j], d[1][j], d[2][j], d[3][j]);
      }
#pragma GCC unroll kUnroll
      for (int i = 0; i < 4; ++i) {
        operand_frequencies(d[i][0], d[i][1], d[i][2], d[i][3]);
#pragma GCC unroll kUnroll
        for (int j = 0; j < 4; ++j) store(to + (i * 4 + j) * c.frequency, d[i][j]);
      }
    }
}

template <int taps>
CONVTBW_INLINE void weights_frequencies(const Floats (&g)[taps], Floats (&u)[4]) {
  u[0] = g[0];
  u[3] = g[taps - 1];
  const Floats even = (taps == 3 ? g[0] + g[2] : g[0]) * 0.5f, odd = g[1] * 0.5f;
  u[1] = even + odd;
  u[2] = even - odd;
}

template <int rows, int columns>
void winograd_weights(const WinogradWeights& c) {
  constexpr int n = kLanes<float>;
  for (int64_t lane = 0; lane < c.lanes; lane += n) {
    Floats half[columns][4];
    for (int j = 0; j < columns; ++j) {
      Floats g[rows];
      for (int i = 0; i < rows; ++i)
        g[i] = c.taps[i][j] ? load(static_cast<const float*>(c.taps[i][j]) + lane) : Floats{};
      weights_frequencies(g, half[j]);
    }
    for (int i = 0; i < 4; ++i) {
      Floats g[columns], u[4];
      for (int j = 0; j < columns; ++j) g[j] = half[j][i];
      weights_frequencies(g, u);
      for (int j = 0; j < 4; ++j)
        store(static_cast<float*>(c.to) + (i * 4 + j) * c.frequency + lane, u[j]);
    }
  }
}

template <int results>
CONVTBW_INLINE void results_of(const Floats (&m)[4], Floats (&y)[results]) {
  const Floats sum = m[1] + m[2], difference = m[1] - m[2];
  y[0] = m[0] + sum;
  if constexpr (results == 2) {
    y[1] = difference - m[3];
  } else {
    y[1] = difference;
    y[2] = sum - m[3];
  }
}

template <int rows, int columns>
bool winograd_results(const WinogradResults& c) {
  constexpr int n = kLanes<float>;
  Floats check{};
  for (int64_t lane = 0; lane < c.lanes; lane += n) {
    const Floats bias = c.bias ? load(static_cast<const float*>(c.bias) + lane) : Floats{};
    const float* from = static_cast<const float*>(c.from) + lane;
    float* to = static_cast<float*>(c.to) + lane;
    for (int64_t tile = 0; tile < c.tiles; ++tile, from += c.from_tile, to += c.to_tile) {
      Floats half[4][rows];
#pragma GCC unroll kUnroll
      for (int j = 0; j < 4; ++j) {
        Floats m[4];
#pragma GCC unroll kUnroll
        for (int i = 0; i < 4; ++i) m[i] = load(from + (i * 4 + j) * c.frequency);
        results_of(m, half[j]);
      }
#pragma GCC unroll kUnroll
      for (int i = 0; i < rows; ++i) {
        const Floats m[4] = {half[0][i], half[1][i], half[2][i], half[3][i]};
        Floats y[columns];
        results_of(m, y);
#pragma GCC unroll kUnroll
        for (int j = 0; j < columns; ++j) {
          check += y[j] * 0.0f;  // NaN, of what is not finite
          store(to + i * c.row + j * c.position, y[j] + bias);
        }
      }
    }
  }
  bool finite = true;
  for (int i = 0; i < n; ++i) finite &= check[i] == 0;
  return finite;
}

constexpr Winograd kWinograd{
    winograd_operand,
    {{winograd_weights<2, 2>, winograd_weights<2, 3>},
     {winograd_weights<3, 2>, winograd_weights<3, 3>}},
    {{winograd_results<2, 2>, winograd_results<2, 3>},
     {winograd_results<3, 2>, winograd_results<3, 3>}},
};

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
