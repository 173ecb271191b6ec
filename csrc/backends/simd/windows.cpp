#include "backends/simd/windows.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace convtbw::simd {

namespace {

Strip overlapping(const std::vector<Sliding>& ways, int64_t windows) {
  // Source positions are met at common multiples of this step alone: leave out those between. One
  // tap has no dilation, and all ways begin at the same remainder or the step is 1.
  int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
  int64_t step = ways.front().stride;
  for (const Sliding& s : ways) {
    if (s.taps == 0) continue;
    if (s.taps > 1) step = std::gcd(step, s.dilation);
    begin = std::min(begin, s.first);
    end = std::max(end, s.first + (s.taps - 1) * s.dilation);
  }
  for (const Sliding& s : ways)
    if (s.taps > 0) step = std::gcd(step, s.first - begin);

  Strip strip{0, ways.front().stride, {}, {}};
  for (const Sliding& s : ways)
    strip.footings.push_back({s.taps == 0 ? 0 : (s.first - begin) / step, s.stride / step,
                              s.taps > 1 ? s.dilation / step : 1});
  if (begin > end) return strip;  // no taps at all
  const Comb comb{0, 1, begin, step, ways.front().stride / step, (end - begin) / step};
  strip.length = comb.length(windows);
  strip.combs.push_back(comb);
  return strip;
}

Strip every_tap(const std::vector<Sliding>& ways, int64_t windows, Apart apart) {
  Strip strip{0, ways.front().stride, {}, {}};
  for (const Sliding& s : ways) {
    const int64_t window = apart == Apart::windows ? s.taps : 1;
    const int64_t tap = apart == Apart::windows ? 1 : windows;
    strip.footings.push_back({strip.length, window, tap});
    for (int64_t k = 0; k < s.taps; ++k)
      strip.combs.push_back(
          {strip.length + k * tap, window, s.first + k * s.dilation, s.stride, 1, 0});
    strip.length += windows * s.taps;
  }
  return strip;
}

}  // namespace

Strip strip(const std::vector<Sliding>& ways, int64_t windows, Apart apart) {
  if (ways.empty()) return {};
  Strip shared = overlapping(ways, windows);
  int64_t taps = 0;
  for (const Sliding& s : ways) taps += s.taps;
  // For lanes over windows, windows must be neighbours.
  const bool usable = apart == Apart::windows || shared.footings.front().window == 1;
  if (usable && shared.length <= windows * taps) return shared;
  return every_tap(ways, windows, apart);
}

}  // namespace convtbw::simd
