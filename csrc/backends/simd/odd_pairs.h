// Copies of pixels of few channels, an odd number of them, as pairs of bfloat16 channels. Included
// by kernels.cpp alone.
#pragma once

#include <array>
#include <utility>

#include "backends/simd/kernels.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Where the elements of a vector of pairs lie in pixels of `columns` pairs that follow each other,
// the last pair of each without a second element.
struct OddPairs {
  static constexpr int kElements = kBytes / 2;

  uint16_t index[kElements] = {}, present[kElements] = {};

  constexpr explicit OddPairs(int columns) {
    const int row = 2 * columns;
    for (int i = 0; i < kElements / row * row; ++i)
      if (i % row != row - 1) {
        index[i] = static_cast<uint16_t>(i / row * (row - 1) + i % row);
        present[i] = 0xffff;
      }
  }
};

template <int... columns>
constexpr std::array<OddPairs, sizeof...(columns)> odd_pairs_of(
    std::integer_sequence<int, columns...>) {
  return {OddPairs(columns + 1)...};
}

// Several pixels a vector, one load each: fprop from 3 channels takes 0.8 to 0.9 of the time (Zen
// 5). Returns how many rows were copied; whole vectors alone are read and written.
CONVTBW_INLINE int64_t copy_odd_pairs(const Copy& c, const bfloat16* from) {
  constexpr int n = kLanes<uint32_t>, kMostColumns = n / 2;
  static constexpr auto kOddPairs = odd_pairs_of(std::make_integer_sequence<int, kMostColumns>());
  if (!c.odd || c.columns > kMostColumns || c.panels > 1 || c.zeros || c.to_row != c.columns ||
      c.from_row != 2 * c.columns - 1)
    return 0;
  const OddPairs& pairs = kOddPairs[c.columns - 1];
  const WideShorts index = load(pairs.index), present = load(pairs.present);
  uint32_t* const to = static_cast<uint32_t*>(c.to);
  int64_t row = 0;
  for (; (c.rows - row) * c.from_row >= OddPairs::kElements; row += n / c.columns) {
    const WideShorts elements = load(&from[row * c.from_row].bits);
    store(to + row * c.columns,
          reinterpret_cast<Words>(__builtin_shuffle(elements, index) & present));
  }
  return row;
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
