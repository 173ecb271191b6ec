// The operators of convtbw as C++ functions, for programs with LibTorch and without Python. Link
// the CMake target convtbw::convtbw (docs/cpp.md).
//
// Each function is its operator torch.ops.convtbw.<name>, called through torch's dispatcher:
// differentiable with respect to every floating tensor, to any order, but for those that add. All
// floating tensors of a call share one dtype: float32, bfloat16, float16 or float64; sums are kept
// in float32 or wider and rounded once. Any strides are legal. An argument that does not fit throws
// c10::Error; the message names it, with the actual and the expected value.
//
// Shapes: N batch, C channels, I and O spatial extents of the forward operator's input and output,
// IC and OC their channels, K the kernel's extents; one, two or three spatial axes. Written for
// NXC, (N, I..., IC); in NCX that is (N, IC, I...). Results are contiguous, but for data in NCX:
// channels_last if the data input is that and not contiguous.
//
// "Source" is the oneDNN Graph operation whose semantics the function has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] convtbw {

// Attributes of a convolution and of its gradients. Extents, strides, pads and dilations count
// pixels, with one entry for each spatial axis.
struct ConvolutionAttributes {
  std::vector<int64_t> strides = {};     // at least 1
  std::vector<int64_t> pads_begin = {};  // at least 0
  std::vector<int64_t> pads_end = {};    // at least 0
  std::vector<int64_t> dilations = {};   // 1 means dense
  // "none"; "valid", no padding; "same_upper" or "same_lower", the padding for which
  // O = ceil(I / stride), the odd pixel at the end or at the beginning. Pads count only for
  // "none".
  std::string auto_pad = "none";
  int64_t groups = 1;  // divides both channel counts
  // Of every data tensor: "NXC" (N, spatial..., C) or "NCX" (N, C, spatial...).
  std::string data_format = "NXC";
  // "OIX", "XIO", "IOX" or "XOI". With groups the channel dimensions are (IC/groups, OC). Without
  // a value it is the operation page's, which differs inside a family: pass it.
  std::optional<std::string> weights_format = {};
};

// Attributes of a transposed convolution and of its gradients, as above but for:
struct ConvTransposeAttributes {
  std::vector<int64_t> strides = {};
  std::vector<int64_t> pads_begin = {};
  std::vector<int64_t> pads_end = {};
  std::vector<int64_t> dilations = {};
  std::string auto_pad = "none";  // "same_...": O = stride * I
  // 0 <= output_padding < max(stride, dilation). Without a value: zeros in conv_transpose, what
  // the shapes imply in the gradients.
  std::optional<std::vector<int64_t>> output_padding = {};
  int64_t groups = 1;
  std::string data_format = "NXC";
  // With groups the channel dimensions are (IC, OC/groups); IOX and XOI also accept
  // (IC/groups, OC), the shape decides.
  std::optional<std::string> weights_format = {};
};

// Transposed convolution: (N, O..., OC) of src (N, I..., IC), weights and, if it has a value,
// bias (OC,), with O = stride * (I - 1) + (K - 1) * dilation + 1 - pads_begin - pads_end +
// output_padding. weights_format: XOI. Source: ConvTranspose,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtranspose.html
at::Tensor conv_transpose(const at::Tensor& src, const at::Tensor& weights,
                          const std::optional<at::Tensor>& bias,
                          const ConvTransposeAttributes& attributes);

// Its data gradient: (N, I..., IC) of diff_dst (N, O..., OC) and weights. Where dilation >
// stride, pass output_padding: without it I is the largest that the stride allows.
// weights_format: XIO. Source: ConvTransposeBackwardData,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwarddata.html
at::Tensor conv_transpose_backward_data(const at::Tensor& diff_dst, const at::Tensor& weights,
                                        const ConvTransposeAttributes& attributes);

// Its weights gradient, of src (N, I..., IC) and diff_dst (N, O..., OC), with the shape
// weights_shape, in the order of weights_format; or with the values of weights_shape_tensor, of
// one dimension, int32 or int64, which cannot be traced. weights_format: XOI. Source:
// ConvTransposeBackwardWeights,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwardweights.html
at::Tensor conv_transpose_backward_weights(const at::Tensor& src, const at::Tensor& diff_dst,
                                           at::IntArrayRef weights_shape,
                                           const ConvTransposeAttributes& attributes);
at::Tensor conv_transpose_backward_weights(const at::Tensor& src, const at::Tensor& diff_dst,
                                           const at::Tensor& weights_shape_tensor,
                                           const ConvTransposeAttributes& attributes);

// The same by an older name; messages say filter_format for weights_format.
// weights_format: XIO. Source: ConvTransposeBackpropFilters-1,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwardweights.html
at::Tensor conv_transpose_backprop_filters(const at::Tensor& input_forward,
                                           const at::Tensor& output_delta,
                                           at::IntArrayRef filter_shape,
                                           const ConvTransposeAttributes& attributes);
at::Tensor conv_transpose_backprop_filters(const at::Tensor& input_forward,
                                           const at::Tensor& output_delta,
                                           const at::Tensor& filter_shape_tensor,
                                           const ConvTransposeAttributes& attributes);

// conv_transpose_backward_weights, added to diff_weights in the kernel, without a second gradient.
// Its dtype is the inputs', or float32 where theirs has 16 bits; any strides. Not differentiable.
// weights_format: XOI.
void conv_transpose_backward_weights_add_(const at::Tensor& diff_weights, const at::Tensor& src,
                                          const at::Tensor& diff_dst,
                                          const ConvTransposeAttributes& attributes);

// Convolution: (N, O..., OC) of src (N, I..., IC), weights and, if it has a value, bias (OC,),
// with O = floor((I + pads_begin + pads_end - (K - 1) * dilation - 1) / stride) + 1.
// weights_format: XIO. Source: Convolution,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolution.html
at::Tensor convolution(const at::Tensor& src, const at::Tensor& weights,
                       const std::optional<at::Tensor>& bias,
                       const ConvolutionAttributes& attributes);

// Its data gradient: (N, I..., IC), of shape src_shape in the order of data_format, which the
// stride leaves open; of diff_dst (N, O..., OC) and weights.
// weights_format: XIO. Source: ConvolutionBackwardData,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwarddata.html
at::Tensor convolution_backward_data(const at::Tensor& diff_dst, const at::Tensor& weights,
                                     at::IntArrayRef src_shape,
                                     const ConvolutionAttributes& attributes);

// Its weights gradient, of src (N, I..., IC) and diff_dst (N, O..., OC), with the shape
// weights_shape, in the order of weights_format; or with the values of weights_shape_tensor, as
// above. Both pads may be left out: they follow from the extents.
// weights_format: XIO. Source: ConvolutionBackwardWeights,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwardweights.html
at::Tensor convolution_backward_weights(const at::Tensor& src, const at::Tensor& diff_dst,
                                        at::IntArrayRef weights_shape,
                                        const ConvolutionAttributes& attributes);
at::Tensor convolution_backward_weights(const at::Tensor& src, const at::Tensor& diff_dst,
                                        const at::Tensor& weights_shape_tensor,
                                        const ConvolutionAttributes& attributes);

// The same by an older name; messages say filter_format for weights_format.
// weights_format: XIO. Source: ConvolutionBackpropFilters-1,
// https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwardweights.html
at::Tensor convolution_backprop_filters(const at::Tensor& input_forward,
                                        const at::Tensor& output_delta,
                                        at::IntArrayRef filter_shape,
                                        const ConvolutionAttributes& attributes);
at::Tensor convolution_backprop_filters(const at::Tensor& input_forward,
                                        const at::Tensor& output_delta,
                                        const at::Tensor& filter_shape_tensor,
                                        const ConvolutionAttributes& attributes);

// convolution_backward_weights, added to diff_weights, as above. weights_format: XIO.
void convolution_backward_weights_add_(const at::Tensor& diff_weights, const at::Tensor& src,
                                       const at::Tensor& diff_dst,
                                       const ConvolutionAttributes& attributes);

}  // namespace convtbw
