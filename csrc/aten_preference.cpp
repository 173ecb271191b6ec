#include "aten_preference.h"

#include <algorithm>

#include "plan/plan.h"

namespace convtbw {

namespace {

// From here on the oneDNN in torch's wheel (3.12) and ours take the same time; below, a call of
// torch's takes 20 to 40 us more (layers of ResNet, batch 1 and 4, one thread of Zen 4).
constexpr int64_t kLargeFlops = 100'000'000;

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

// Where the rules put oneDNN first, and the problem is large: torch's is newer and already there.
bool suits_torch(const AtenConvolution& convolution, const Problem& problem) {
  return may_be_torchs() && !convolution.transposed && flops(problem) >= kLargeFlops &&
         preferred(problem).name == "onednn" && uses_torchs_onednn(convolution);
}

}  // namespace convtbw
