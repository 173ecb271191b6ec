// convolution_backward is linear in grad_output, and in input and weight apart, so each of its
// gradients is a convolution or a gradient of one. Torch's own function writes the weights' as a
// convolution with the images for channels and as many taps as the result has pixels, one for each
// group, of which it then cuts off what the stride left over: with 64 images 16x16, 16 -> 32
// channels, k5 s2, 1.4 times the arithmetic.
#include "aten_double_backward.h"

#include <ATen/CompositeImplicitAutogradFunctions.h>

namespace convtbw {

namespace {

bool is_defined(const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); }

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> aten_convolution_double_backward(
    const std::optional<at::Tensor>& grad_grad_input,
    const std::optional<at::Tensor>& grad_grad_weight,
    const std::optional<at::Tensor>& grad_grad_bias, const at::Tensor& grad_output,
    const at::Tensor& weight, const at::Tensor& input, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
  if (input.sym_numel() == 0)
    return at::compositeimplicitautograd::_convolution_double_backward(
        grad_grad_input, grad_grad_weight, grad_grad_bias, grad_output, weight, input, stride,
        padding, dilation, transposed, output_padding, groups, output_mask);
  at::Tensor for_grad_output, for_input, for_weight;
  const auto add = [&](const at::Tensor& term) {
    for_grad_output = for_grad_output.defined() ? for_grad_output + term : term;
  };
  const auto convolved = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::convolution(x, w, std::nullopt, stride, padding, dilation, transposed,
                           output_padding, groups);
  };
  const auto gradients = [&](const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> mask) {
    return at::convolution_backward(grad_output, x, w, at::OptionalIntArrayRef(), stride, padding,
                                    dilation, transposed, output_padding, groups, mask);
  };
  if (is_defined(grad_grad_input)) {
    if (output_mask[0]) add(convolved(*grad_grad_input, weight));
    if (output_mask[2])
      for_weight = std::get<1>(gradients(*grad_grad_input, weight, {false, true, false}));
  }
  if (is_defined(grad_grad_weight)) {
    if (output_mask[0]) add(convolved(input, *grad_grad_weight));
    if (output_mask[1])
      for_input = std::get<0>(gradients(input, *grad_grad_weight, {true, false, false}));
  }
  if (is_defined(grad_grad_bias) && output_mask[0]) {
    std::vector<c10::SymInt> shape(grad_output.dim(), 1);
    shape[1] = grad_grad_bias->sym_size(0);
    add(grad_grad_bias->reshape_symint(shape).expand_symint(grad_output.sym_sizes()));
  }
  return {for_grad_output, for_input, for_weight};
}

}  // namespace convtbw
