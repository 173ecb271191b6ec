// fprop of windows that overlap by half, read in place: 8x8 of stride 4, 16x16 of stride 8. Each
// position is met by four of them, and loaded once for all, row by row.
//
// Time tap by tap over that of these (Zen 5; float32 and bfloat16, 8 lanes; 16 lanes): 21 channels
// 1.4 to 1.7, 1.2 to 1.5; 1.4 to 1.6, 1.25 to 1.45; 64 1.0 to 1.2, 1.05 to 1.15; 1.0 to 1.35, 1.05;
// 256 1.0 to 1.3, 1.0 to 1.1; 1.05 to 1.3, 0.85 to 0.9; of stride 2 0.65 to 0.9; 0.85 to 1.1.
#include <algorithm>

#include "backends/simd/grouped_data.h"
#include "core/scratch.h"

namespace convtbw::simd {

bool GroupedDataPlan::overlaps_by_half() const {
  constexpr int64_t kMostUnits = 64 << 10;  // of a row of results
  if (!fprop_ || staged_ || spreading_kernels_ || !side_.in_place()) return false;
  const auto by_half = [](const Sliding& s) {
    return overlap_by_half(s) && -s.first >= 0 && -s.first <= s.stride;
  };
  const Sliding &depth = axes_[1].phases.front().sliding, &rows = axes_[2].phases.front().sliding,
                &row = axes_[3].phases.front().sliding;
  return depth.taps == 1 && depth.first == 0 && by_half(rows) && by_half(row) && row.stride > 2 &&
         in_.extent[3] == row.stride * out_.extent[3] &&
         in_.extent[1] > (out_.extent[1] - 1) * depth.stride && grid_.size[3] == out_.extent[3] &&
         grid_.size[3] * parts_.pitch() <= kMostUnits &&
         arithmetic_.lane_window_rows[static_cast<int>(problem_.dtype)];
}

void GroupedDataPlan::run_overlapping(const Operands& operands, int64_t part, const BoxRange& box,
                                      const char* packed) const {
  const LaneParts::Range lanes = parts_.part(part);
  const int64_t bytes = element_bytes(problem_.dtype);
  const Sliding &depth = axes_[1].phases.front().sliding, &rows = axes_[2].phases.front().sliding,
                &row = axes_[3].phases.front().sliding;
  const char* const x = static_cast<const char*>(operands.data.x) + lanes.begin * bytes;
  char* const y = static_cast<char*>(operands.data.y) + lanes.begin * bytes;
  const auto function = arithmetic_.lane_window_rows[static_cast<int>(problem_.dtype)];
  LaneWindowRows call{};
  call.start = packed + lanes.begin * unit();
  call.partial = local_scratch<char>(local_bytes());
  call.partial_step = parts_.pitch();
  call.a_row = in_.stride[2];
  call.a_pixel = in_.stride[3];
  call.w_tap = weights_pitch_;
  call.w_row = row.taps * weights_pitch_;
  call.w_rows = rows.stride * call.w_row;
  call.windows = box.count[3];
  call.stride = row.stride;
  call.pad = -row.first;
  call.lanes = lanes.count;
  call.c_step = out_.stride[3];
  call.a_ahead = asks_ahead_ ? rows.stride * in_.stride[2] : 0;
  const int64_t begin = box.begin[2], end = begin + box.count[2];
  PerAxis<int64_t> window = box.begin;
  for (window[0] = box.begin[0]; window[0] < box.begin[0] + box.count[0]; ++window[0])
    for (window[1] = box.begin[1]; window[1] < box.begin[1] + box.count[1]; ++window[1])
      // The rows of positions that window u begins with, and window u - 1 ends with.
      for (int64_t u = begin; u <= end; ++u) {
        const int64_t first = u * rows.stride + rows.first;
        const int64_t present = std::clamp<int64_t>(-first, 0, rows.stride);
        call.a_rows =
            std::clamp<int64_t>(in_.extent[2] - first - present, 0, rows.stride - present);
        call.both = begin < u && u < end;
        call.begins = u < end;
        const PerAxis<int64_t> position{window[0], window[1] * depth.stride, first + present, 0};
        call.a = x + offset(position, in_.stride) * bytes;
        const int64_t tap_row = present + (call.begins ? 0 : rows.stride);
        call.w = packed + (lanes_pitch_ + tap_row * call.w_row + lanes.begin) * unit();
        window[2] = u - 1;
        call.c = y + offset(window, out_.stride) * bytes;
        function(call);
      }
}

}  // namespace convtbw::simd
