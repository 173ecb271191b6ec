// The autocast key. The forward operators compute in autocast's dtype, as torch's convolutions do;
// the gradients take what they are given, as aten::convolution_backward does.
#include <ATen/autocast_mode.h>

#include "call.h"

namespace convtbw {

namespace {

at::Tensor in_autocast_dtype(const Call& call) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  const auto cast = [dtype](const auto& tensor) {
    return at::autocast::cached_cast(dtype, tensor, at::kCPU);
  };
  const at::Tensor first = cast(call.first), second = cast(call.second);
  return dispatch({call.op, first, second, cast(call.bias), call.shape_tensor, call.shape,
                   call.strides, call.pads_begin, call.pads_end, call.dilations, call.auto_pad,
                   call.output_padding, call.groups, call.data_format, call.weights_format});
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, AutocastCPU, m) {
  convtbw::for_each_operator([&]<const convtbw::Operator & op, class Schema>() {
    if constexpr (op.takes_bias)  // a forward operator
      m.impl(op.name, &Schema::template kernel<op, &convtbw::in_autocast_dtype>);
  });
}
