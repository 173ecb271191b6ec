// Every schema: the table of contents. What they mean: docs/design.md and the README's table.
// Pads and shapes are SymInt so that a traced program does not recompile for every size.
#include <torch/library.h>

TORCH_LIBRARY(convtbw, m) {
  const std::string transposed_weights_gradient =
      "(Tensor src, Tensor diff_dst, "
      "Tensor? weights_shape_tensor=None, *, int[] strides, SymInt[] pads_begin, "
      "SymInt[] pads_end, int[] dilations, str auto_pad='none', SymInt[]? output_padding=None, "
      "int groups=1, str data_format='NXC', str weights_format='XOI', "
      "SymInt[]? weights_shape=None) -> Tensor";
  const std::string weights_gradient =
      "(Tensor src, Tensor diff_dst, "
      "Tensor? weights_shape_tensor=None, *, int[] strides, SymInt[] pads_begin=[], "
      "SymInt[] pads_end=[], int[] dilations, str auto_pad='none', int groups=1, "
      "str data_format='NXC', str weights_format='XIO', SymInt[]? weights_shape=None) -> Tensor";
  m.def(("conv_transpose_backward_weights" + transposed_weights_gradient).c_str());
  m.def(
      "conv_transpose_backprop_filters(Tensor input_forward, Tensor output_delta, "
      "Tensor? filter_shape_tensor=None, *, int[] strides, SymInt[] pads_begin, "
      "SymInt[] pads_end, int[] dilations, str auto_pad='none', SymInt[]? output_padding=None, "
      "int groups=1, str data_format='NXC', str filter_format='XIO', "
      "SymInt[]? filter_shape=None) -> Tensor");
  m.def(
      "conv_transpose_backward_data(Tensor diff_dst, Tensor weights, *, int[] strides, "
      "SymInt[] pads_begin, SymInt[] pads_end, int[] dilations, str auto_pad='none', "
      "SymInt[]? output_padding=None, int groups=1, str data_format='NXC', "
      "str weights_format='XIO') -> Tensor");
  m.def(
      "convolution_backprop_filters(Tensor input_forward, Tensor output_delta, "
      "Tensor? filter_shape_tensor=None, *, int[] strides, SymInt[] pads_begin=[], "
      "SymInt[] pads_end=[], int[] dilations, str auto_pad='none', int groups=1, "
      "str data_format='NXC', str filter_format='XIO', SymInt[]? filter_shape=None) -> Tensor");
  m.def(("convolution_backward_weights" + weights_gradient).c_str());
  m.def(
      "convolution_backward_data(Tensor diff_dst, Tensor weights, *, SymInt[] src_shape, "
      "int[] strides, SymInt[] pads_begin, SymInt[] pads_end, int[] dilations, "
      "str auto_pad='none', int groups=1, str data_format='NXC', "
      "str weights_format='XIO') -> Tensor");
  m.def(
      "conv_transpose(Tensor src, Tensor weights, Tensor? bias=None, *, int[] strides, "
      "SymInt[] pads_begin, SymInt[] pads_end, int[] dilations, str auto_pad='none', "
      "SymInt[]? output_padding=None, int groups=1, str data_format='NXC', "
      "str weights_format='XOI') -> Tensor");
  m.def(
      "convolution(Tensor src, Tensor weights, Tensor? bias=None, *, int[] strides, "
      "SymInt[] pads_begin, SymInt[] pads_end, int[] dilations, str auto_pad='none', "
      "int groups=1, str data_format='NXC', str weights_format='XIO') -> Tensor");
  m.def(
      "conv_transpose_backward_weights_add_(Tensor(a!) diff_weights, Tensor src, "
      "Tensor diff_dst, *, int[] strides, SymInt[] pads_begin, SymInt[] pads_end, "
      "int[] dilations, str auto_pad='none', SymInt[]? output_padding=None, int groups=1, "
      "str data_format='NXC', str weights_format='XOI') -> ()");
  m.def(
      "convolution_backward_weights_add_(Tensor(a!) diff_weights, Tensor src, Tensor diff_dst, *, "
      "int[] strides, SymInt[] pads_begin=[], SymInt[] pads_end=[], int[] dilations, "
      "str auto_pad='none', int groups=1, str data_format='NXC', "
      "str weights_format='XIO') -> ()");
  // Not public: weights_shape has one more dimension, the first, of slices (operators.h).
  m.def(("_conv_transpose_backward_weights_of_slices" + transposed_weights_gradient).c_str());
  m.def(("_convolution_backward_weights_of_slices" + weights_gradient).c_str());
}
