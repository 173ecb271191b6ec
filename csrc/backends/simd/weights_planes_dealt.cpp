// wgrad of depthwise problems with a stride of 2, channels first: x is read where it lies, and its
// pixels are dealt in registers. Rows of y have zeros at both ends instead: windows that are not
// there. Time of pixels that are dealt to a buffer (SlidRows::copy) over that of these (Zen 5, 8
// lanes), 3x3 to 7x7 of 28 to 128 windows: float32 0.95 to 1.4, bfloat16 and float16 0.97 to 1.65.
#include <algorithm>

#include "backends/simd/phases.h"
#include "backends/simd/weights_planes.h"

namespace convtbw::simd {

void PlaneWeightsPlan::list_rows_with_margins(const Operands& operands, const BoxRange& box,
                                              int64_t channel, int64_t plane,
                                              const Memory& memory) const {
  char* const row = memory.y;
  arithmetic_.plane_copy[static_cast<int>(problem_.dtype)]({y_row(operands, box, channel, plane),
                                                            y_.stride[2], row + margin_ * unit(),
                                                            y_row_, box.count[2], box.count[3]});
  list_rows_between_zeros(row, y_row_ * unit(), box.count[2], memory.zeros, memory.y_rows);
}

void PlaneWeightsPlan::add_dealt(const Operands& operands, const BoxRange& box, int64_t channel,
                                 int64_t plane, const Memory& memory, const Ahead& y_ahead,
                                 char* sums) const {
  const auto& [images, depth, rows, row] = slid_.sliding();
  const int64_t lanes = arithmetic_.lanes, bytes = element_bytes(problem_.dtype);
  const int64_t end = (box.begin[3] + box.count[3] - 1) * 2 + row.first + row.taps;
  const int64_t first = std::max<int64_t>(0, box.begin[3] * 2 + row.first) / 2;  // pair of pixels
  const DealtTapsFunctions& functions = arithmetic_.dealt_taps[static_cast<int>(problem_.dtype)];
  DealtTaps call{};
  call.count = std::min(ceil_div(end, 2) * 2, x_.extent[3]) - 2 * first;
  if (call.count <= 0) return;
  call.a_row = rows.stride * x_.stride[2];
  call.sums_row = rows.stride * row.taps * lanes;
  if (y_ahead.bytes) call.a_ahead = x_.channel;
  const int64_t most_rows = std::max<int64_t>(1, kMaxSteps / ceil_div(call.count, 2 * lanes));
  const int64_t all_products =
      depth.taps * rows.taps * row.taps * (box.count[2] + kMaxDealtRows - 1);
  int64_t done = 0;
  PerAxis<int64_t> position{box.begin[0], 0, 0, 2 * first};
  // Tap rows k*stride + `after` behind each other, so many together, against the rows of pixels
  // that both meet.
  const auto add_rows = [&](int64_t t1, int64_t after, int64_t k, int64_t together) {
    position[2] = (box.begin[2] + k) * rows.stride + rows.first + after;
    const int64_t all_rows = box.count[2] + together - 1;
    const int64_t begin = std::max<int64_t>(0, ceil_div(-position[2], rows.stride));
    const int64_t stop =
        std::min(all_rows, floor_div(x_.extent[2] - 1 - position[2], rows.stride) + 1);
    const char* const a = static_cast<const char*>(operands.data.x) +
                          (channel * x_.channel + offset(position, x_.stride)) * bytes;
    const int64_t pieces = ceil_div(row.taps, kMaxDealtTaps[together]);
    for (int64_t piece = 0, tap = 0, width; piece < pieces; ++piece, tap += width) {
      width = (row.taps - tap) / (pieces - piece);  // as even as can be
      const int64_t window = floor_div(tap + row.first, 2), odd = tap + row.first - 2 * window;
      call.b = margin_ + first - window - box.begin[3];
      call.sums =
          sums + (((t1 * rows.taps + after + k * rows.stride) * row.taps) + tap) * lanes * unit();
      for (int64_t i = begin; i < stop; i += most_rows) {
        call.rows = std::min(most_rows, stop - i);
        call.a = a + i * call.a_row * bytes;
        call.b_rows = memory.y_rows + i;
        const int64_t products = together * width * call.rows;
        y_ahead.fetch(done, products, all_products);
        done += products;
        functions.at[odd][together][width](call);
      }
    }
  };
  for (int64_t t1 = 0; t1 < depth.taps; ++t1) {
    position[1] = (box.begin[1] + plane) * depth.stride + depth.first + t1 * depth.dilation;
    if (position[1] < 0 || position[1] >= x_.extent[1]) continue;
    for (int64_t after = 0; after < std::min(rows.stride, rows.taps); ++after) {
      const int64_t all = ceil_div(rows.taps - after, rows.stride);
      const int64_t pieces = ceil_div(all, kMaxDealtRows);
      for (int64_t i = 0, k = 0, together; i < pieces; ++i, k += together) {
        together = (all - k) / (pieces - i);
        add_rows(t1, after, k, together);
      }
    }
  }
}

}  // namespace convtbw::simd
