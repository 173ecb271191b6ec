// The C++ interface, torch_ops/include/convtbw/convtbw.h: arguments -> Call. Its functions are all
// that the library exports.
#include <convtbw/convtbw.h>

#include "call.h"

namespace convtbw {

namespace {

// The operation page's format, which only the schema knows.
std::string default_format(const Operator& op) {
  const c10::FunctionSchema& schema =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow((std::string("convtbw::") + op.name).c_str(), "")
          .schema();
  const int index = schema.argumentIndexWithName(op.weights_format_name).value();
  return schema.arguments()[index].default_value()->toStringRef();
}

struct Tensors {
  const at::Tensor& first;
  const at::Tensor& second;
  std::optional<at::Tensor> bias = {};
  std::optional<at::Tensor> shape_tensor = {};
  std::optional<at::Tensor> added_to = {};
};

template <class Attributes>
at::Tensor call(const Operator& op, const Tensors& tensors, at::OptionalIntArrayRef shape,
                const Attributes& a) {
  const auto symbolic = [](at::OptionalIntArrayRef values) -> at::OptionalSymIntArrayRef {
    if (!values) return {};
    return c10::fromIntArrayRefSlow(*values);
  };
  at::OptionalSymIntArrayRef output_padding;
  if constexpr (requires { a.output_padding; })
    if (a.output_padding) output_padding = symbolic(*a.output_padding);
  const std::string weights_format = a.weights_format ? *a.weights_format : default_format(op);
  return dispatch({op, tensors.first, tensors.second, tensors.bias, tensors.shape_tensor,
                   symbolic(shape), a.strides, *symbolic(a.pads_begin), *symbolic(a.pads_end),
                   a.dilations, a.auto_pad, output_padding, a.groups, a.data_format, weights_format,
                   tensors.added_to});
}

}  // namespace

using at::IntArrayRef;
using at::Tensor;

Tensor conv_transpose(const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias,
                      const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose, {src, weights, bias}, {}, attributes);
}

Tensor conv_transpose_backward_data(const Tensor& diff_dst, const Tensor& weights,
                                    const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose_backward_data, {diff_dst, weights}, {}, attributes);
}

Tensor conv_transpose_backward_weights(const Tensor& src, const Tensor& diff_dst,
                                       IntArrayRef weights_shape,
                                       const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose_backward_weights, {src, diff_dst}, weights_shape, attributes);
}

Tensor conv_transpose_backward_weights(const Tensor& src, const Tensor& diff_dst,
                                       const Tensor& weights_shape_tensor,
                                       const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose_backward_weights, {src, diff_dst, {}, weights_shape_tensor}, {},
              attributes);
}

Tensor conv_transpose_backprop_filters(const Tensor& input_forward, const Tensor& output_delta,
                                       IntArrayRef filter_shape,
                                       const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose_backprop_filters, {input_forward, output_delta}, filter_shape,
              attributes);
}

Tensor conv_transpose_backprop_filters(const Tensor& input_forward, const Tensor& output_delta,
                                       const Tensor& filter_shape_tensor,
                                       const ConvTransposeAttributes& attributes) {
  return call(op::conv_transpose_backprop_filters,
              {input_forward, output_delta, {}, filter_shape_tensor}, {}, attributes);
}

void conv_transpose_backward_weights_add_(const Tensor& diff_weights, const Tensor& src,
                                          const Tensor& diff_dst,
                                          const ConvTransposeAttributes& attributes) {
  call(op::conv_transpose_backward_weights_add, {src, diff_dst, {}, {}, diff_weights}, {},
       attributes);
}

Tensor convolution(const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias,
                   const ConvolutionAttributes& attributes) {
  return call(op::convolution, {src, weights, bias}, {}, attributes);
}

Tensor convolution_backward_data(const Tensor& diff_dst, const Tensor& weights,
                                 IntArrayRef src_shape, const ConvolutionAttributes& attributes) {
  return call(op::convolution_backward_data, {diff_dst, weights}, src_shape, attributes);
}

Tensor convolution_backward_weights(const Tensor& src, const Tensor& diff_dst,
                                    IntArrayRef weights_shape,
                                    const ConvolutionAttributes& attributes) {
  return call(op::convolution_backward_weights, {src, diff_dst}, weights_shape, attributes);
}

Tensor convolution_backward_weights(const Tensor& src, const Tensor& diff_dst,
                                    const Tensor& weights_shape_tensor,
                                    const ConvolutionAttributes& attributes) {
  return call(op::convolution_backward_weights, {src, diff_dst, {}, weights_shape_tensor}, {},
              attributes);
}

Tensor convolution_backprop_filters(const Tensor& input_forward, const Tensor& output_delta,
                                    IntArrayRef filter_shape,
                                    const ConvolutionAttributes& attributes) {
  return call(op::convolution_backprop_filters, {input_forward, output_delta}, filter_shape,
              attributes);
}

Tensor convolution_backprop_filters(const Tensor& input_forward, const Tensor& output_delta,
                                    const Tensor& filter_shape_tensor,
                                    const ConvolutionAttributes& attributes) {
  return call(op::convolution_backprop_filters,
              {input_forward, output_delta, {}, filter_shape_tensor}, {}, attributes);
}

void convolution_backward_weights_add_(const Tensor& diff_weights, const Tensor& src,
                                       const Tensor& diff_dst,
                                       const ConvolutionAttributes& attributes) {
  call(op::convolution_backward_weights_add, {src, diff_dst, {}, {}, diff_weights}, {}, attributes);
}

}  // namespace convtbw
