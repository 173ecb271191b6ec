// The functions of convtbw.h as operators convtbw_interface::<name>, all of one schema.
#include <convtbw/convtbw.h>
#include <torch/library.h>

namespace {

using at::IntArrayRef;
using at::Tensor;
using Convolution = convtbw::ConvolutionAttributes;
using ConvTranspose = convtbw::ConvTransposeAttributes;
using OptionalInts = at::OptionalIntArrayRef;
using OptionalTensor = std::optional<Tensor>;

// `extra` is the bias, the shape tensor or what is added to.
constexpr const char* kSchema =
    "(Tensor first, Tensor second, Tensor? extra, int[]? shape, *, int[] strides, "
    "int[] pads_begin, int[] pads_end, int[] dilations, str auto_pad, int[]? output_padding, "
    "int groups, str data_format, str? weights_format) -> Tensor";

struct Tensors {
  const Tensor &first, &second;
  const OptionalTensor& extra;
  OptionalInts shape;
};

template <class Attributes>
using Function = Tensor (*)(const Tensors&, const Attributes&);

template <class Attributes>
void define(torch::Library& library, const std::string& name, Function<Attributes> function) {
  library.def((name + kSchema).c_str(),
              [function](const Tensor& first, const Tensor& second, const OptionalTensor& extra,
                         OptionalInts shape, IntArrayRef strides, IntArrayRef pads_begin,
                         IntArrayRef pads_end, IntArrayRef dilations, std::string auto_pad,
                         OptionalInts output_padding, int64_t groups, std::string data_format,
                         std::optional<std::string> weights_format) {
                Attributes attributes{.strides = strides.vec(),
                                      .pads_begin = pads_begin.vec(),
                                      .pads_end = pads_end.vec(),
                                      .dilations = dilations.vec(),
                                      .auto_pad = auto_pad,
                                      .groups = groups,
                                      .data_format = data_format,
                                      .weights_format = weights_format};
                if constexpr (requires { attributes.output_padding; })
                  if (output_padding) attributes.output_padding = output_padding->vec();
                return function({first, second, extra, shape}, attributes);
              });
}

}  // namespace

TORCH_LIBRARY(convtbw_interface, m) {
  using namespace convtbw;
  define<ConvTranspose>(m, "conv_transpose", [](const Tensors& t, const ConvTranspose& a) {
    return conv_transpose(t.first, t.second, t.extra, a);
  });
  define<ConvTranspose>(m, "conv_transpose_backward_data",
                        [](const Tensors& t, const ConvTranspose& a) {
                          return conv_transpose_backward_data(t.first, t.second, a);
                        });
  define<ConvTranspose>(
      m, "conv_transpose_backward_weights", [](const Tensors& t, const ConvTranspose& a) {
        return t.extra ? conv_transpose_backward_weights(t.first, t.second, *t.extra, a)
                       : conv_transpose_backward_weights(t.first, t.second, *t.shape, a);
      });
  define<ConvTranspose>(
      m, "conv_transpose_backprop_filters", [](const Tensors& t, const ConvTranspose& a) {
        return t.extra ? conv_transpose_backprop_filters(t.first, t.second, *t.extra, a)
                       : conv_transpose_backprop_filters(t.first, t.second, *t.shape, a);
      });
  define<Convolution>(m, "convolution", [](const Tensors& t, const Convolution& a) {
    return convolution(t.first, t.second, t.extra, a);
  });
  define<Convolution>(m, "convolution_backward_data", [](const Tensors& t, const Convolution& a) {
    return convolution_backward_data(t.first, t.second, *t.shape, a);
  });
  define<Convolution>(
      m, "convolution_backward_weights", [](const Tensors& t, const Convolution& a) {
        return t.extra ? convolution_backward_weights(t.first, t.second, *t.extra, a)
                       : convolution_backward_weights(t.first, t.second, *t.shape, a);
      });
  define<Convolution>(
      m, "convolution_backprop_filters", [](const Tensors& t, const Convolution& a) {
        return t.extra ? convolution_backprop_filters(t.first, t.second, *t.extra, a)
                       : convolution_backprop_filters(t.first, t.second, *t.shape, a);
      });
  // A result may not be an argument.
  define<ConvTranspose>(m, "conv_transpose_backward_weights_add_",
                        [](const Tensors& t, const ConvTranspose& a) {
                          conv_transpose_backward_weights_add_(*t.extra, t.first, t.second, a);
                          return t.extra->clone();
                        });
  define<Convolution>(m, "convolution_backward_weights_add_",
                      [](const Tensors& t, const Convolution& a) {
                        convolution_backward_weights_add_(*t.extra, t.first, t.second, a);
                        return t.extra->clone();
                      });
}
