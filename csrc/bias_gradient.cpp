#include "bias_gradient.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "check.h"
#include "ops.h"
#include "plan/plan.h"

namespace convtbw {

namespace {

// Of one channel of one image.
int64_t pixels_of(const at::Tensor& gradient, int64_t channel) {
  return gradient.numel() / (gradient.size(0) * gradient.size(channel));
}

// Whether sums of 16 bits over images and pixels should be a weights gradient of one tap over ones,
// which reads them where they lie. Times over those of torch, float16 and bfloat16, two threads of
// Zen 4:
// - channels first, of which torch makes a whole copy in float32: 49 pixels 0.8, 196 and more 0.26
//   to 0.6; of more than a row of ones that stays in the cache up to 100;
// - channels last, from 6 M elements on and of 48 channels and more, whose vectors are filled, 0.23
//   to 0.6 (one thread 0.4 to 0.9, AVX2 0.23 to 0.6); of fewer elements 0.55 to 1.4.
bool suits_kernels(const at::Tensor& gradient, int64_t channel) {
  constexpr int64_t kLeastPixels = 49, kMostPixels = 64 << 10;
  constexpr int64_t kLeastChannels = 48, kLeastElements = 6 << 20;
  if (!has_16_bits(gradient.scalar_type()) || !is_plain_on_cpu(gradient) || gradient.numel() == 0 ||
      !rules_choose() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer))
    return false;
  const int64_t channels = gradient.size(channel), pixels = pixels_of(gradient, channel);
  if (channels == 1 || pixels > kMostPixels) return false;
  if (channel == 1 && gradient.is_contiguous() && pixels >= kLeastPixels) return true;
  return channels >= kLeastChannels && gradient.numel() >= kLeastElements &&
         gradient.movedim(channel, -1).is_contiguous();
}

}  // namespace

at::Tensor differentiable_bias_gradient(const at::Tensor& gradient, int64_t channel) {
  at::DimVector others;
  for (int64_t d = 0; d < gradient.dim(); ++d)
    if (d != channel) others.push_back(d);
  return gradient.sum(others);
}

at::Tensor bias_gradient(const at::Tensor& gradient, int64_t channel) {
  if (!suits_kernels(gradient, channel)) return differentiable_bias_gradient(gradient, channel);
  const int64_t images = gradient.size(0), channels = gradient.size(channel);
  const int64_t pixels = pixels_of(gradient, channel);
  const bool last = gradient.stride(channel) == 1;  // channels first have several pixels each
  Problem problem = problem_here();
  problem.geometry = {images, 1, 1, channels, 1, {}};
  problem.geometry.axes.back() = {pixels, 1, pixels, 1, 0, 1};
  problem.wanted = Role::w;
  problem.dtype = gradient.scalar_type() == at::kHalf ? Dtype::f16 : Dtype::bf16;
  problem.y = {images > 1 ? channels * pixels : 0, last ? 1 : pixels, {}};
  problem.y.axes.back() = pixels == 1 ? 0 : last ? channels : 1;
  problem.w.y_channel = 1;
  uint16_t one = problem.dtype == Dtype::f16 ? 0x3c00 : 0x3f80;
  const at::Tensor result = at::empty({channels}, gradient.options());
  Operands operands;
  operands.data.x = &one;
  operands.data.y = const_cast<void*>(gradient.const_data_ptr());
  operands.data.w = result.mutable_data_ptr();
  compute(problem, "bias_gradient", operands);
  return result;
}

}  // namespace convtbw
