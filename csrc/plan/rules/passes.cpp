// What oneDNN does in passes of its own beside its kernels, and simd does not. Of any dtype.
#include <algorithm>

#include "plan/rules/problem_kinds.h"
#include "plan/rules/rules.h"

namespace convtbw {

// Whether a tensor that is read has its channels last and gaps between pixels, as part of the
// channels of a larger one, such as the gradient of what torch.cat joined: oneDNN copies it, or
// serves it by older kernels. Times of simd over oneDNN where that would be preferred, AVX-512
// kernels of both, float32 and bfloat16, two threads of Zen 4, 23 layers of 1-D to 3-D: 0.36
// to 1.12, 0.85 in the mean, upsampling by 2x2x2 least; AVX2 kernels 0.77 to 1.15, 0.93. Groups of
// 16 0.8 to 1.4, which are left to rules.h; depthwise layers 0.2 to 0.9.
bool reads_gaps(const Problem& p) {
  const Geometry& g = p.geometry;
  if (g.groups > 1 && g.x_channels * g.y_channels > 1) return false;
  const auto has_gaps = [&](Role role) {
    const DataStrides& strides = strides_of(p, role);
    if (role == p.wanted || strides.channel != 1) return false;
    int64_t dense = channels_of(p, role);
    for (int a = kMaxRank - 1; a >= 0; --a) {
      const int64_t pixels = role == Role::x ? g.axes[a].x : g.axes[a].y;
      if (pixels > 1 && strides.axes[a] != dense) return true;
      dense *= pixels;
    }
    return false;
  };
  return has_gaps(Role::x) || has_gaps(Role::y);
}

// The bias of dgrad, which simd's sums begin with, is to oneDNN a pass of its own over all results,
// in 16 bits two. Times of simd over oneDNN, one tap, AVX-512 kernels of both, two threads of Zen
// 4: float32 0.77 to 0.99, bfloat16 0.58 to 0.72; 3x3 to 7x7 0.92 to 1.2, as without bias.
bool bias_outweighs(const Problem& p) {
  return p.bias && p.wanted == Role::x && p.geometry.taps() == 1;
}

// One tap that meets padding, which oneDNN computes as a copy and a product of matrices. Times of
// simd over oneDNN, two threads of Zen 5, 1-D to 3-D, 32 to 128 channels, channels last: AVX-512
// kernels, float32 0.03 to 0.67, bfloat16 0.02 to 0.48; AVX2 kernels 0.05 to 0.88. Channels first
// 0.4 to 1.4.
bool one_tap_in_padding(const Problem& p) {
  if (!one_tap(p.geometry) || !has_channels_last(p)) return false;
  return std::ranges::any_of(p.geometry.axes, [](const Axis& axis) {
    return axis.pad > 0 || (axis.y - 1) * axis.stride - axis.pad >= axis.x;
  });
}

}  // namespace convtbw
