// fprop and dgrad in bands (lane_bands.h): of windows that slide pixel by pixel along rows.
#include <algorithm>

#include "backends/simd/far_bytes.h"
#include "backends/simd/grouped_data.h"

namespace convtbw::simd {

// Time of lane_row() over that of bands (Zen 5; float32, float16): 3x3 to 7x7 of 7x7 to 112x112 1.3
// to 1.7, 1.0 to 1.4; of 1024 channels of 7x7 1.05, 1.1; behind the caches 1.05 to 2.5, 1.0
// to 1.25; volumes 1.05 to 1.7, 1.1 to 1.45; 9x9 and 11x11 1.15 to 1.9; channels first, 3x3
// to 11x11, 1.2 to 1.75; with a stride, where a phase writes every second pixel, 0.5 to 1.0, 0.65
// to 1.1.
bool GroupedDataPlan::suits_bands() const {
  if (order_.spread() || axes_[2].windows == 1 || axes_[3].phases.empty()) return false;
  if (problem_.dtype != sum_dtype(problem_.dtype)) {
    if (mixes_dtypes()) return false;
    // In place they are converted for every row of taps: float16 9x9 and 11x11 of 56x56 1.1 to 1.2
    // times as long, of 28x28 0.85 to 1.0.
    constexpr int64_t kManyTaps = 8, kLongRow = 28;
    if (in_.channel == 1 && problem_.geometry.axes[2].k > kManyTaps && axes_[3].windows > kLongRow)
      return false;
  }
  const LaneBandFunctions& bands = arithmetic_.lane_bands[static_cast<int>(problem_.dtype)];
  const bool slides = std::ranges::all_of(axes_[3].phases, [&](const Phase& phase) {
    const Sliding& s = phase.sliding;
    return phase.out_step == 1 && s.stride == s.dilation && s.taps <= kMaxBandTaps &&
           bands.at[s.taps];
  });
  return slides && !meets_too_much();
}

// Of a volume in place: several planes' rows, read twice. Behind the caches bands take 1.1 to 1.85
// times as long as lane_row(). So do lines of several vectors, whose rows lie in few sets of the
// first-level cache: 1.5 to 1.85 times, float16 of rows that are a multiple of 4096 bytes.
bool GroupedDataPlan::meets_too_much() const {
  constexpr int64_t kWays = 12;
  const int64_t depth = problem_.geometry.axes[0].k, bytes = element_bytes(problem_.dtype);
  if (depth == 1 || in_.channel != 1) return false;
  int64_t lines = 0;
  for (const Phase& rows : axes_[2].phases)
    lines = std::max(lines, depth * (most_band_rows() + rows.sliding.taps));
  return data_bytes(problem_, operand_) > far_bytes().reads ||
         (arithmetic_.lanes * bytes < kLineBytes &&
          lines > kWays * cache_sets(in_.stride[2] * bytes));
}

int64_t GroupedDataPlan::most_band_rows() const {
  const int64_t taps = axes_[3].phases.front().sliding.taps;
  return arithmetic_.lane_bands[static_cast<int>(problem_.dtype)].max_rows[taps];
}

// Whether many rows of results are cut, each at other taps. They are in bands with those of other
// images, of which a box has several: 7x7 with k5 and k7 and 14x14 with k7 0.62 to 0.95 of the
// time; where fewer rows are cut 0.93 to 1.35.
bool GroupedDataPlan::cuts_many_rows() const {
  constexpr double kWhole = 0.6;
  if (axes_[2].phases.empty()) return false;
  const int64_t windows = axes_[2].windows;
  const Range whole = whole_windows(axes_[2].phases.front().sliding, in_.extent[2], windows);
  return static_cast<double>(whole.end - whole.begin) <= kWhole * static_cast<double>(windows);
}

void GroupedDataPlan::run_bands(const BoxRange& windows, const Steps& steps, const LaneRow& row,
                                LaneTapRow* tap_rows) const {
  const int64_t a_bytes = element_bytes(side_.dtype()), c_bytes = element_bytes(out_dtype_);
  const auto& [sliding, a_tap, a_window, c_window, a_first, c_first] = steps;
  const Sliding& columns = sliding[3];
  const auto band_function = arithmetic_.lane_bands[static_cast<int>(out_dtype_)].at[columns.taps];
  // Of results too: those of the next rows instead take 1.05 to 1.2 times as long where they are
  // 10 MB and more; 4 to 16 columns are within 3 % of each other (Zen 4).
  constexpr int64_t kColumnsAhead = 8;
  LaneBand band{};
  band.tap_rows = tap_rows;
  band.start = row.start;
  band.windows = windows.count[3];
  // Columns that are there, counted from tap 0 of the first window.
  const int64_t before = columns.first + windows.begin[3] * columns.stride;
  band.begin = side_.padded() ? 0 : ceil_div(-before, columns.stride);
  band.end = side_.padded() ? band.windows + columns.taps - 1
                            : floor_div(in_.extent[3] - 1 - before, columns.stride) + 1;
  band.a_step = a_window[3];
  band.w_tap = weights_pitch_;
  band.w_row = weights_pitch_ * columns.taps;
  band.c_step = c_window[3];
  band.lanes = row.lanes;
  for_each_region(
      sliding, in_, side_.padded(), windows,
      [&](const Region& region) {
        // Rows of one image, or where they are few the same row of several.
        const PerAxis<int64_t>& count = region.windows.count;
        const int64_t most = most_band_rows();
        const int across = 2 * count[2] <= std::min(count[0], most) ? 0 : 2;
        band.a_row = a_window[across];
        band.c_row = c_window[across];
        band.c_ahead = asks_for_results_ && across == 2 ? kColumnsAhead * band.c_step : 0;
        const bool together = across == 2 && columns.taps == kRowsTogether &&
                              region.taps[2] == kRowsTogether && a_tap[2] == a_window[2];
        band.together = together ? kRowsTogether : 1;
        band.tap_row_count = 0;
        for (int64_t t1 = 0; t1 < region.taps[1]; ++t1)
          for (int64_t t2 = 0; t2 < region.taps[2]; t2 += band.together)
            tap_rows[band.tap_row_count++] = {t1 * a_tap[1] + t2 * a_tap[2],
                                              (t1 * sliding[2].taps + t2) * band.w_row};
        band.w = static_cast<const char*>(row.w) +
                 (region.tap[1] * sliding[2].taps + region.tap[2]) * band.w_row * unit();
        const int64_t taps = a_first + region.tap[1] * a_tap[1] + region.tap[2] * a_tap[2];
        if (asks_ahead_ && band.tap_row_count)
          band.a_ahead = tap_rows[band.tap_row_count - 1].a + (band.together - 1) * band.a_row +
                         kColumnsAhead * band.a_step;
        Region bands_of = region;
        bands_of.windows.count[3] = 1;
        bands_of.for_each_line(across, [&](PerAxis<int64_t> u) {
          int64_t left = count[across];
          for (int64_t piece = ceil_div(left, most); piece > 0; --piece, left -= band.rows) {
            band.rows = left / piece;  // as even as can be
            band.a = static_cast<const char*>(row.a) + (taps + offset(u, a_window)) * a_bytes;
            band.c = static_cast<char*>(row.c) + (c_first + offset(u, c_window)) * c_bytes;
            band_function(band);
            u[across] += band.rows;
          }
        });
      },
      3);
}

}  // namespace convtbw::simd
