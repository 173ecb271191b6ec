#include "backends/simd/epilogue.h"

#include <algorithm>

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
  if (problem.epilogue != Epilogue::overwrite) {
    if (dtype == Dtype::f64)
      add_result<double>(arithmetic, dtype, sums);
    else
      add_result<float>(arithmetic, dtype, sums);
  }
  arithmetic.unpack[static_cast<int>(dtype)](sums);
}

}  // namespace convtbw::simd
