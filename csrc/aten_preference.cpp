#include "aten_preference.h"

#include <ATen/Version.h>

#include <algorithm>

#include "plan/plan.h"
#include "plan/preference.h"

namespace convtbw {

namespace {

// Below this the call itself decides, and a primitive of oneDNN costs tens of microseconds.
constexpr int64_t kTinyFlops = 2'000'000;

// Dense convolutions of several taps on the oneDNN in torch's wheel (3.12). Time of torch over that
// of simd, one thread of Zen 4. In 2-D, layers of ResNet with 64 to 512 channels (batch 2) and of
// LeNet (16):
// - fprop from few channels: 0.7 to 0.9 in float32 and 0.4 to 0.6 in bfloat16 with AVX-512; with
//   AVX2 into few channels 0.5, into many 1.2 to 1.9; from many channels bfloat16 0.4 to 0.9, but
//   channels last with less than 64 pixels 1.0 to 1.1 (float32: preference.cpp);
// - dgrad, channels first: 0.5 to 0.95, with a stride and less than 128 channels 1.0; channels last
//   like fprop;
// - wgrad with AVX-512, channels first: bfloat16 0.6 to 0.9, float32 up to 128 channels or with
//   less than 64 pixels 0.7 to 0.96 (else 0.96 to 1.2); channels last bfloat16 0.8 to 1.0, with
//   less than 384 pixels 1.2 to 1.7; with AVX2 1.0 to 2.0.
// In 3-D, layers of a U-Net with 1 to 32 channels: bfloat16 fprop 0.3 to 0.9, wgrad 0.2 to 0.8,
// dgrad 0.9 (with a stride 1.3 to 1.7, into one channel 2.2 to 2.5); float32 2.
bool suits_torchs_dense_kernels(const Problem& p) {
  static const bool avx512 = at::get_cpu_capability().starts_with("AVX512");
  const Geometry& g = p.geometry;
  const bool one_tap =
      std::all_of(g.axes.begin(), g.axes.end(), [](const Axis& a) { return a.k == 1; });
  if (g.groups != 1 || g.rank == 1 || one_tap || flops(p) < kTinyFlops) return false;
  const bool sixteen_bits = p.dtype != Dtype::f32;
  const bool channels_last = p.x.channel == 1;
  const int64_t channels = std::min(g.x_channels, g.y_channels);
  const int64_t pixels = g.batch * g.axes[1].y * g.axes[2].y;
  const bool unit_strides =
      std::all_of(g.axes.begin(), g.axes.end(), [](const Axis& a) { return a.stride == 1; });
  if (g.rank == 3) return sixteen_bits && (p.wanted != Role::x || (unit_strides && channels >= 16));
  if (p.wanted == Role::y && g.x_channels < 8) return avx512 || g.y_channels < 8;
  if (channels < 16) return false;
  if (p.wanted == Role::w) {
    if (!avx512 || channels < 32) return false;
    if (channels_last) return sixteen_bits && pixels >= 384;
    return sixteen_bits || g.y_channels <= 128 || pixels < 64;
  }
  if (channels_last) return sixteen_bits && pixels >= 64;
  if (p.wanted == Role::y) return sixteen_bits;
  return unit_strides || channels >= 128;
}

// Torch's kernels depend on the number of threads.
bool may_be_torchs() { return rules_choose() && !at::globalContext().deterministicAlgorithms(); }

}  // namespace

// Tiny 3-D problems of few channels, where our kernels pack row by row. Time of torch's im2col over
// that of simd, AVX-512 kernels on Zen 4: 2 channels 4x4x4 k3 0.7, 4 channels 0.7 to 0.8,
// transposed k2 0.7 to 0.8 (weights 1.0 to 1.2); 8 channels and 1-D, 2-D 0.9 to 8.
bool suits_torch(const AtenConvolution& c) {
  if (c.rank != 3 || c.input.scalar_type() != at::kFloat) return false;
  const int64_t products = c.input.numel() / c.input.size(1) * c.weight.numel();
  const int64_t channels = std::min(c.weight.size(0), c.weight.size(1));
  return channels < 8 && products < 30'000 && may_be_torchs();
}

bool suits_torch(const AtenConvolution& convolution, const Problem& problem) {
  // Where the rules put oneDNN first, torch's is newer than ours and already in the process.
  return (preference(problem).front()->name == "onednn" ||
          (!convolution.transposed && suits_torchs_dense_kernels(problem))) &&
         may_be_torchs() && uses_torchs_onednn(convolution);
}

}  // namespace convtbw
