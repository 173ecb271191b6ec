// Where what lies in a stride of a signal is its channels.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Whether windows of one channel are several strides long, and everything else whole strides, as
// in short-time Fourier transforms, so that 1 to 1026 channels, 1024 taps of stride 256, are 256 to
// 1026 channels, four taps of stride 1. fprop and dgrad. Time without over that with them, two
// threads of Zen 4, 10 layers, two layouts: float32 with 8 lanes, fprop 0.87 to 1.96, 1.2 in the
// mean, dgrad 1.2 to 1.84, 1.35; with 16 1.0 to 1.27, 1.06, and 1.06 to 2.5, 1.45; pairs of
// bfloat16 1.0 to 2.3, 1.3, and 1.0 to 3.3, 1.5. Strides of up to 20, as of encoders of speech, 0.5
// to 1.9 without a pattern, 1.0 in the mean; wgrad 1.0.
inline bool strides_fold(const Problem& p) {
  constexpr int64_t kLeastStride = 32;
  const Geometry& g = p.geometry;
  const Axis& axis = g.axes.back();
  return p.wanted != Role::w && g.groups == 1 && g.x_channels == 1 && g.axes[0] == Axis{} &&
         g.axes[1] == Axis{} && axis.stride >= kLeastStride && axis.dilation == 1 &&
         axis.k > axis.stride && axis.k % axis.stride == 0 && axis.pad % axis.stride == 0 &&
         axis.x % axis.stride == 0;
}

}  // namespace convtbw
