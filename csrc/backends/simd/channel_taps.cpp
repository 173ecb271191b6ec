#include "backends/simd/channel_taps.h"

#include <cstring>

namespace convtbw::simd {

void pack_channel_taps(const Arithmetic& arithmetic, const Problem& problem,
                       const Operands& operands, const std::vector<TapRow>& rows, int64_t first,
                       int64_t channels, char* weights, char* start) {
  const int dtype = static_cast<int>(problem.dtype);
  const int64_t bytes = element_bytes(problem.dtype);
  const int64_t unit = element_bytes(sum_dtype(problem.dtype)), group = problem.w.group;
  const char* const from = static_cast<const char*>(operands.data.w) + first * group * bytes;
  int64_t all = 0;
  for (const TapRow& row : rows) all += row.taps;
  char* to = weights;
  for (const TapRow& row : rows) {
    arithmetic.pack[dtype](
        {from + row.first * bytes, group, row.step, to, all, 1, channels, row.taps});
    to += row.taps * unit;
  }
  if (operands.bias)
    arithmetic.widen[dtype]({static_cast<const char*>(operands.bias) + first * bytes, channels, 1,
                             start, channels, 1, 1, channels});
  else
    std::memset(start, 0, channels * unit);
}

}  // namespace convtbw::simd
