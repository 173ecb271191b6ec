// The gradient of a bias: what the result's gradient sums to, for each channel.
#pragma once

#include <ATen/ATen.h>

namespace convtbw {

// All but derivatives of it. `channel`: the dimension of the gradient's channels.
at::Tensor bias_gradient(const at::Tensor& gradient, int64_t channel);

// The same by operators of torch, which are differentiable.
at::Tensor differentiable_bias_gradient(const at::Tensor& gradient, int64_t channel);

}  // namespace convtbw
