#include "backends/simd/epilogue.h"

#include <algorithm>

#include "backends/simd/matrix_copies.h"

namespace convtbw::simd {

namespace {

// Adds what the result holds to the sums. It is fetched as a tensor is packed, a few rows at a
// time into a buffer in the first-level cache: a second set of copies that add where they write
// would be as large as the first (copy.h), and blocks of theirs overlap.
template <class Unit>
void add_result(const Arithmetic& arithmetic, Dtype dtype, const Copy& sums) {
  constexpr int64_t kUnits = 1024;
  alignas(64) Unit held[kUnits];
  const int64_t bytes = element_bytes(dtype);
  Unit* const all = const_cast<Unit*>(static_cast<const Unit*>(sums.from));
  const int64_t columns = std::min(sums.columns, kUnits), rows = kUnits / columns;
  for (int64_t column = 0; column < sums.columns; column += columns)
    for (int64_t row = 0; row < sums.rows; row += rows) {
      Copy back{};
      back.from =
          static_cast<const char*>(sums.to) + (row * sums.to_row + column * sums.to_column) * bytes;
      back.from_row = sums.to_row;
      back.from_column = sums.to_column;
      back.to = held;
      back.to_row = back.columns = std::min(columns, sums.columns - column);
      back.to_column = 1;
      back.rows = std::min(rows, sums.rows - row);
      back.panels = 1;
      arithmetic.widen[static_cast<int>(dtype)](back);
      for (int64_t i = 0; i < back.rows; ++i) {
        Unit* const to = all + (row + i) * sums.from_row + column;
        const Unit* const from = held + i * back.columns;
        for (int64_t j = 0; j < back.columns; ++j) to[j] += from[j];
      }
    }
}

}  // namespace

void write_weights(const Problem& problem, const Arithmetic& arithmetic, const Copy& sums) {
  const Dtype dtype = result_dtype(problem);
  if (adds(problem.epilogue)) {
    if (dtype == Dtype::f64)
      add_result<double>(arithmetic, dtype, sums);
    else
      add_result<float>(arithmetic, dtype, sums);
  }
  arithmetic.unpack[static_cast<int>(dtype)](sums);
}

void write_channel_weights(const Problem& problem, const Arithmetic& arithmetic, const char* sums,
                           int64_t channel_units, void* weights) {
  const WeightsStrides& w = problem.w;
  const Axis &rows = problem.geometry.axes[1], &row = problem.geometry.axes[2];
  const int64_t bytes = element_bytes(result_dtype(problem));
  const int64_t unit = element_bytes(sum_dtype(problem.dtype)), taps = problem.geometry.taps();
  // Taps at a constant distance: all of them, or those of the last axis.
  const bool flat = taps_follow(problem, w.axes[2]);
  const int64_t row_taps = flat ? taps : row.k;
  for (int64_t tap = 0; tap < taps; tap += row_taps, sums += row_taps * unit) {
    const int64_t i = tap / row.k;
    char* const to =
        static_cast<char*>(weights) + (i / rows.k * w.axes[0] + i % rows.k * w.axes[1]) * bytes;
    write_weights(
        problem, arithmetic,
        {sums, channel_units, 1, to, w.group, w.axes[2], problem.geometry.groups, row_taps});
  }
}

}  // namespace convtbw::simd
