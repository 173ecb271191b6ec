// dgrad of windows that are two pixels apart, window by window (lane_scatter.h).
#include "backends/simd/far_bytes.h"
#include "backends/simd/grouped_data.h"

namespace convtbw::simd {

// Phase by phase, a call is of few taps, of 3x3 one to four, and costs more than these. Time of
// that over this (Zen 4, 32 to 1024 channels of 14x14 to 112x112, 3x3 to 7x7, 1-D and 3x3x3; 8
// lanes, 16 lanes): channels last 0.9 to 1.5, 1.15 in the mean, 0.95 to 1.8, 1.2; channels first
// 0.85 to 1.3, 1.08; 1.05 to 1.75, 1.25; bfloat16 that was multiplied in pairs 0.95 to 1.4, 1.1.
// 4x4x4 0.88 to 1.15, 1.0 in the mean.
bool GroupedDataPlan::suits_scatter() const {
  constexpr int64_t kMostRows = 9;  // of taps
  const auto& [depth, rows, row] = problem_.geometry.axes;
  return !fprop_ && !order_.spread() && !mixes_dtypes() && row.stride == kScatterStride &&
         depth.k * rows.k <= kMostRows && row.dilation == 1 && row.k >= kMinScatterTaps &&
         row.k <= kMaxScatterTaps && axes_[3].phases.size() == kScatterStride &&
         arithmetic_.lane_scatter[static_cast<int>(problem_.dtype)][0];
}

// Whether to ask for results. Times of asking for none (float32 and float16, two threads of Zen 4):
// whose pixels are up to so many bytes apart 0.84 to 1.8, 1.15 in the mean; of others 0.5 to 1.3,
// 0.85, but from 16 MB on 1.05 to 1.27, of 13 MB 0.81 to 0.95.
bool GroupedDataPlan::gains_by_asking() const {
  constexpr int64_t kFewBytes = 640, kManyBytes = 14 << 20;
  return out_.stride[3] * element_bytes(out_dtype_) <= kFewBytes ||
         data_bytes(problem_, problem_.wanted) > kManyBytes;
}

// The phases of the last axis as one: its windows have all taps, and windows of one phase slide
// pixel by pixel over the operand.
Phase GroupedDataPlan::joined_row_phases() const {
  const PhasedAxis& row = axes_[3];
  const int64_t k = problem_.geometry.axes.back().k;
  return {{k, row.phases.front().sliding.first, 1, 1}, 0, row.windows, row.out, row.step, 0, 1};
}

void GroupedDataPlan::run_scatter(const BoxRange& windows, const Steps& steps, const LaneRow& row,
                                  LaneTapRow* tap_rows) const {
  const int64_t a_bytes = element_bytes(side_.dtype()), c_bytes = element_bytes(out_dtype_);
  const auto& [sliding, a_tap, a_window, c_window, a_first, c_first] = steps;
  const Sliding& columns = sliding[3];
  const auto function =
      arithmetic_.lane_scatter[static_cast<int>(out_dtype_)][columns.taps - kMinScatterTaps];
  constexpr int64_t kColumnsAhead = 8;
  const int64_t c_step = c_window[3] / kScatterStride;  // from one result to the next
  LaneScatter call{};
  call.tap_rows = tap_rows;
  call.start = row.start;
  call.windows = windows.count[3];
  // Columns, and results, that are there, counted from those of the first window.
  const int64_t column = columns.first + windows.begin[3];
  call.begin = std::max<int64_t>(0, -column);
  call.end = in_.extent[3] - column;
  const int64_t result = axes_[3].out + windows.begin[3] * kScatterStride;
  call.from = std::max<int64_t>(0, -result);
  call.to = std::min(call.windows * kScatterStride, out_.extent[3] - result);
  call.a_step = a_window[3];
  call.w_tap = weights_pitch_;
  call.c_step = c_step;
  call.lanes = row.lanes;
  const int64_t w_row = weights_pitch_ * columns.taps;
  for_each_region(
      sliding, in_, side_.padded(), windows,
      [&](const Region& region) {
        call.tap_row_count = 0;
        for (int64_t t1 = 0; t1 < region.taps[1]; ++t1)
          for (int64_t t2 = 0; t2 < region.taps[2]; ++t2)
            tap_rows[call.tap_row_count++] = {t1 * a_tap[1] + t2 * a_tap[2],
                                              (t1 * sliding[2].taps + t2) * w_row};
        call.w = static_cast<const char*>(row.w) +
                 (region.tap[1] * sliding[2].taps + region.tap[2]) * w_row * unit();
        const int64_t taps = a_first + region.tap[1] * a_tap[1] + region.tap[2] * a_tap[2];
        if (asks_ahead_ && call.tap_row_count)
          call.a_ahead = tap_rows[call.tap_row_count - 1].a + kColumnsAhead * call.a_step;
        call.c_ahead = asks_for_results_ ? c_window[2] : 0;
        Region lines = region;
        lines.windows.count[3] = 1;
        lines.for_each_line(3, [&](const PerAxis<int64_t>& u) {
          call.a = static_cast<const char*>(row.a) + (taps + offset(u, a_window)) * a_bytes;
          call.c = static_cast<char*>(row.c) + (c_first + offset(u, c_window)) * c_bytes;
          function(call);
        });
      },
      3);
}

}  // namespace convtbw::simd
