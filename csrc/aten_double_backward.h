// aten::_convolution_double_backward: the gradients of aten::convolution_backward.
#pragma once

#include <ATen/ATen.h>

namespace convtbw {

std::tuple<at::Tensor, at::Tensor, at::Tensor> aten_convolution_double_backward(
    const std::optional<at::Tensor>& grad_grad_input,
    const std::optional<at::Tensor>& grad_grad_weight,
    const std::optional<at::Tensor>& grad_grad_bias, const at::Tensor& grad_output,
    const at::Tensor& weight, const at::Tensor& input, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask);

}  // namespace convtbw
