// torch's functions as operators: a call in torch's words becomes one of ours, or stays torch's. It
// is the short cut of torch_ops.functional, which knows more words and finds better ones for an
// error. Composite: autograd, vmap, autocast and tracers see the operators that it calls.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "aten_format.h"
#include "call.h"

namespace convtbw {

namespace {

using at::DimVector;
using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

struct Attributes {
  IntArrayRef stride, padding, dilation;
  int64_t groups;
};

// Whether the operators take these tensors. Autocast gives them one dtype.
bool is_computed_here(size_t rank, const Tensor& input, const Tensor& weight,
                      const OptionalTensor& bias, IntArrayRef padding) {
  const bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
  const auto is_plain = [&](const Tensor& tensor) {
    return (tensor.is_cpu() || tensor.is_meta()) && tensor.layout() == at::kStrided &&
           !tensor.is_nested() &&
           (autocast ? tensor.is_floating_point() : tensor.scalar_type() == input.scalar_type());
  };
  const bool batched = input.dim() == weight.dim();
  return input.is_floating_point() && is_plain(input) && is_plain(weight) &&
         (!bias || is_plain(*bias)) && weight.dim() == static_cast<int64_t>(rank) + 2 &&
         (batched || input.dim() == weight.dim() - 1) &&
         std::all_of(padding.begin(), padding.end(), [](int64_t pad) { return pad >= 0; });
}

bool is_channels_last(const Tensor& tensor) {
  return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
}

// The result is channels_last where the input or the weights are. The operators do not look at the
// weights' format: they are given channels_last memory as NXC, where contiguous means the same.
Tensor computed_here(const Operator& op, size_t rank, const Tensor& input, const Tensor& weight,
                     const OptionalTensor& bias, const Attributes& attributes,
                     at::OptionalSymIntArrayRef output_padding) {
  const bool batched = input.dim() == weight.dim();
  Tensor data = batched ? input : input.unsqueeze(0);
  const bool as_nxc = rank > 1 && (is_channels_last(data) || is_channels_last(weight));
  if (as_nxc) data = data.movedim(1, -1);
  const DimVector strides = for_each_axis(attributes.stride, rank),
                  padding = for_each_axis(attributes.padding, rank),
                  dilations = for_each_axis(attributes.dilation, rank);
  const c10::SymIntArrayRef pads = c10::fromIntArrayRefKnownNonNegative(padding);
  Tensor result = dispatch({.op = op,
                            .first = data,
                            .second = weight,
                            .bias = bias,
                            .shape_tensor = std::nullopt,
                            .shape = std::nullopt,
                            .strides = strides,
                            .pads_begin = pads,
                            .pads_end = pads,
                            .dilations = dilations,
                            .auto_pad = "none",
                            .output_padding = output_padding,
                            .groups = attributes.groups,
                            .data_format = as_nxc ? "NXC" : "NCX",
                            .weights_format = op.transposed() ? "IOX" : "OIX"});
  // One image cut out of a channels_last batch is channels_last for the operator.
  result = as_nxc ? result.movedim(-1, 1) : result.contiguous();
  return batched ? result : result.squeeze(0);
}

template <size_t rank>
Tensor conv(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  if (is_computed_here(rank, input, weight, bias, padding))
    return computed_here(op::convolution, rank, input, weight, bias,
                         {stride, padding, dilation, groups}, std::nullopt);
  constexpr std::array torchs{&at::_ops::conv1d::call, &at::_ops::conv2d::call,
                              &at::_ops::conv3d::call};
  return torchs[rank - 1](input, weight, bias, c10::fromIntArrayRefSlow(stride),
                          c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation),
                          groups);
}

template <size_t rank>
Tensor conv_transpose(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                      int64_t groups, IntArrayRef dilation) {
  // The operator also reads weights of (input channels / groups, output channels); torch does not.
  if (is_computed_here(rank, input, weight, bias, padding) &&
      input.sym_size(-static_cast<int64_t>(rank) - 1) == weight.sym_size(0)) {
    const DimVector extra = for_each_axis(output_padding, rank);
    return computed_here(op::conv_transpose, rank, input, weight, bias,
                         {stride, padding, dilation, groups}, c10::fromIntArrayRefSlow(extra));
  }
  constexpr std::array torchs{&at::_ops::conv_transpose1d::call,
                              &at::_ops::conv_transpose2d_input::call,
                              &at::_ops::conv_transpose3d_input::call};
  return torchs[rank - 1](
      input, weight, bias, c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(output_padding), groups, c10::fromIntArrayRefSlow(dilation));
}

template <size_t rank>
void define(torch::Library& m) {
  const auto of_rank = [](std::string schema) {
    std::replace(schema.begin(), schema.end(), '#', static_cast<char>('0' + rank));
    return schema;
  };
  m.def(of_rank("conv#d(Tensor input, Tensor weight, Tensor? bias, int[#] stride, "
                "int[#] padding, int[#] dilation, int groups) -> Tensor")
            .c_str(),
        &conv<rank>);
  m.def(of_rank("conv_transpose#d(Tensor input, Tensor weight, Tensor? bias, int[#] stride, "
                "int[#] padding, int[#] output_padding, int groups, int[#] dilation) -> Tensor")
            .c_str(),
        &conv_transpose<rank>);
}

// vmap would loop over an operator that is only composite.
template <size_t rank>
void decompose(torch::Library& m) {
  const std::string axes = std::to_string(rank);
  m.impl(("conv" + axes + "d").c_str(), &conv<rank>);
  m.impl(("conv_transpose" + axes + "d").c_str(), &conv_transpose<rank>);
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY(convtbw_functional, m) {
  convtbw::define<1>(m);
  convtbw::define<2>(m);
  convtbw::define<3>(m);
}

TORCH_LIBRARY_IMPL(convtbw_functional, FuncTorchBatchedDecomposition, m) {
  convtbw::decompose<1>(m);
  convtbw::decompose<2>(m);
  convtbw::decompose<3>(m);
}
