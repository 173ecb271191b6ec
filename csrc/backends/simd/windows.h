// How windows slide along an axis, and how the positions that they meet are laid out in a buffer.
#pragma once

#include <cstdint>
#include <vector>

namespace convtbw::simd {

// Tap k of window j meets position first + j*stride + k*dilation of the source; a position outside
// of it is absent and counts as zero.
struct Sliding {
  int64_t taps = 1, first = 0, stride = 1, dilation = 1;
};

// Whether windows are twice as long as they are apart: each position is met by two.
inline bool overlap_by_half(const Sliding& s) { return s.taps == 2 * s.stride && s.dilation == 1; }

// How many taps windows are apart: the position of a tap is the next window's of so many taps
// before. 0 if it is none's.
inline int64_t taps_apart(const Sliding& s) {
  return s.stride % s.dilation == 0 ? s.stride / s.dilation : 0;
}

// A sequence of buffer positions, to + t*to_step, and the source positions that they hold,
// from + t*from_step, counted from source position 0 for window 0.
struct Comb {
  int64_t to, to_step, from, from_step;
  int64_t window, extra;

  // Positions that so many windows need.
  int64_t length(int64_t windows) const { return (windows - 1) * window + 1 + extra; }
};

// Tap k of window j lies at buffer position offset + j*window + k*tap.
struct Footing {
  int64_t offset, window, tap;
};

// The buffer of one axis for up to so many windows, which may be met in several ways at once: the
// phases of a strided dgrad share it.
struct Strip {
  int64_t length = 0;
  int64_t stride = 1;  // source positions from one window to the next
  std::vector<Comb> combs;
  std::vector<Footing> footings;  // one for each way
};

enum class Apart : uint8_t {
  windows,  // where positions are not shared, the taps of a window lie side by side
  taps,     // ... the windows of a tap lie side by side
};

// `ways` share their stride; a way without taps takes no room. Positions are kept in the source's
// order, each once, unless laying out every tap of every window is shorter: strides and dilations
// have no bound, buffers have.
Strip strip(const std::vector<Sliding>& ways, int64_t windows, Apart apart);

}  // namespace convtbw::simd
